"""The staging directory of a trainer, by its own calls: a checkpoint is written in a directory
with another name, its files and the directory are fsynced, then the directory is renamed; old
checkpoints are removed as trees; a rename onto a directory that is not empty is refused."""

import errno
import json
import os
import shutil

import torch
from safetensors.torch import load_file, save_file

from saving import SEED, digest, main, names, same

KEEP = 2


def tensors(step):
    g = torch.Generator().manual_seed(SEED + step)
    return {f"layer.{i}": torch.randn(500, 700 + i, generator=g) for i in range(4)}


def sync_dir(path):
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)


def save(place):
    for step in range(1, 5):
        final, staging = place.path(f"checkpoint-{step}"), place.path(f"tmp-checkpoint-{step}")
        os.makedirs(staging)
        save_file(tensors(step), os.path.join(staging, "model.safetensors"))
        torch.save({"step": step, "state": tensors(step)}, os.path.join(staging, "optimizer.pt"))
        os.makedirs(os.path.join(staging, "rng", "rank0"))
        with open(os.path.join(staging, "rng", "rank0", "state.json"), "w") as f:
            json.dump({"step": step}, f)
        held = open(os.path.join(staging, "held.log"), "w")  # open over the rename
        held.write("before\n")
        held.flush()
        os.rename(staging, final)
        sync_dir(place.root)
        held.write("after\n")
        held.close()
        sync_dir(final)
        if step > KEEP:
            shutil.rmtree(place.path(f"checkpoint-{step - KEEP}"))
    os.makedirs(place.path("tmp-checkpoint-4"))
    try:
        os.rename(place.path("tmp-checkpoint-4"), place.path("checkpoint-4"))
        same("a rename onto a directory that is not empty", "no error", "ENOTEMPTY")
    except OSError as e:
        same("its error", errno.errorcode[e.errno], "ENOTEMPTY")
    os.rmdir(place.path("tmp-checkpoint-4"))
    return {f"{s} {f} {k}": digest(t.numpy()) for s in (3, 4) for f in ("model", "optimizer") for k, t in tensors(s).items()}


def load(place):
    names(place.root, "checkpoint-3", "checkpoint-4")
    got = {}
    for step in (3, 4):
        d = place.path(f"checkpoint-{step}")
        names(d, "model.safetensors", "optimizer.pt", "rng", "held.log")
        with open(os.path.join(d, "held.log")) as f:
            same("held.log", f.read(), "before\nafter\n")
        with open(os.path.join(d, "rng", "rank0", "state.json")) as f:
            same("state.json", json.load(f), {"step": step})
        for k, t in load_file(os.path.join(d, "model.safetensors")).items():
            got[f"{step} model {k}"] = digest(t.numpy())
        for k, t in torch.load(os.path.join(d, "optimizer.pt"), mmap=True, weights_only=True)["state"].items():
            got[f"{step} optimizer {k}"] = digest(t.numpy())
    return got


if __name__ == "__main__":
    main(save, load)

"""torch.distributed.checkpoint with two ranks: save, save over an existing one, async_save."""

import os

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

from saving import SEED, digest, main, names, ranks

RANKS = 2


def whole(step):
    g = torch.Generator().manual_seed(SEED + step)
    return {f"layer.{i}.weight": torch.randn(512, 1024 + i, generator=g) for i in range(6)}


def sharded(step, zero=False):
    mesh = init_device_mesh("cpu", (RANKS,))
    out = {}
    for name, t in whole(step).items():
        out[name] = distribute_tensor(torch.zeros_like(t) if zero else t, mesh, [Shard(0)])
    return {"model": out, "step": -1 if zero else step}


def sums(step, state):
    out = {f"{step} step": str(state["step"])}
    for name, t in state["model"].items():
        out[f"{step} {name}"] = digest(t.full_tensor().contiguous().numpy())
    return out


def save_rank(rank, root):
    got = {}
    dcp.save(sharded(1), checkpoint_id=os.path.join(root, "step-1"))
    got.update(sums(1, sharded(1)))

    for step in (20, 2):  # the second replaces the first's .metadata
        writer = dcp.FileSystemWriter(os.path.join(root, "step-2"), thread_count=2, sync_files=True, overwrite=True)
        dcp.save(sharded(step), storage_writer=writer)
    got.update(sums(2, sharded(2)))

    both = dist.new_group(backend="gloo")
    waits = []
    for step in (3, 4):
        for w in waits:
            w.result()
        waits = [dcp.async_save(sharded(step), checkpoint_id=os.path.join(root, f"step-{step}"), process_group=both)]
        got.update(sums(step, sharded(step)))
    for w in waits:
        w.result()
    return got


def load_rank(rank, root):
    got = {}
    for step in (1, 2, 3, 4):
        state = sharded(step, zero=True)
        dcp.load(state, checkpoint_id=os.path.join(root, f"step-{step}"))
        got.update(sums(step, state))
    return got


def save(place):
    return ranks(RANKS, save_rank, place.root)


def load(place):
    names(place.path("step-1"), ".metadata", "__0_0.distcp", "__1_0.distcp")
    return ranks(RANKS, load_rank, place.root)


if __name__ == "__main__":
    main(save, load)

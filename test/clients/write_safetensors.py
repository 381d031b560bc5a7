"""safetensors: a model in shards, saved twice over the same names, and one shard saved over
while it is mapped. Up to 0.7 a file is truncated, extended and filled; from 0.8 a temporary
file beside it is renamed over it. write_safetensors07.py is the same with the older one."""

import json
import os
import sys

import safetensors
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from saving import SEED, digest, main, names, same

SHARDS = 3
REPLACES = tuple(int(n) for n in safetensors.__version__.split(".")[:2]) >= (0, 8)


def shard(i, step):
    g = torch.Generator().manual_seed(SEED + 10 * step + i)
    return {
        f"layers.{i}.weight": torch.randn(1024, 2048, generator=g),
        f"layers.{i}.half": torch.randn(511, 2048, generator=g).to(torch.float16),
        f"layers.{i}.bias": torch.randn(1023, generator=g),
    }


def name_of(i):
    return f"model-{i + 1:05d}-of-{SHARDS:05d}.safetensors"


def sums(tensors):
    return {k: digest(t.contiguous().view(torch.uint8).numpy()) for k, t in tensors.items()}


def save(place):
    wanted = "0.8 or later" if "07" not in os.path.basename(sys.argv[0]) else "0.7"
    same(f"this script is for safetensors {wanted}; renames", REPLACES, wanted != "0.7")
    got, where = {}, {}
    for step in (1, 2):
        for i in range(SHARDS):
            mapped = load_file(place.path(name_of(i))) if step > 1 and REPLACES else None
            save_file(shard(i, step), place.path(name_of(i)), metadata={"step": str(step)})
            if mapped is not None:  # of the file that was there before; a truncation would zero it
                same(f"a mapping of the {name_of(i)} that was replaced", sums(mapped), sums(shard(i, 1)))
            got.update(sums(shard(i, step)))
            where.update({k: name_of(i) for k in shard(i, step)})
    with open(place.path("model.safetensors.index.json"), "w") as f:
        json.dump({"metadata": {}, "weight_map": where}, f)
    return got


def load(place):
    names(place.root, "model.safetensors.index.json", *(name_of(i) for i in range(SHARDS)))
    with open(place.path("model.safetensors.index.json")) as f:
        where = json.load(f)["weight_map"]
    got = {}
    for name in sorted(set(where.values())):
        whole = load_file(place.path(name))
        with safe_open(place.path(name), framework="pt") as f:
            same(f"metadata of {name}", f.metadata(), {"step": "2"})
            same(f"{name} lazily and whole", sums({k: f.get_tensor(k) for k in f.keys()}), sums(whole))
        got.update(sums(whole))
    return got


if __name__ == "__main__":
    main(save, load)

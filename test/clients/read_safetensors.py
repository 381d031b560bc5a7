"""safetensors: a model in shards, read whole, lazily and by slices; all of it by mmap."""

import json
import os

import numpy as np

from common import SEED, compare, digest, main

SHARDS = 3
LAYERS = 6


def tensors(shard):
    rng = np.random.default_rng([SEED, shard])
    out = {}
    for layer in range(LAYERS):
        name = f"model.layers.{shard * LAYERS + layer}"
        out[f"{name}.weight"] = rng.standard_normal((1024, 2048), dtype=np.float32)
        out[f"{name}.half"] = rng.standard_normal((512, 2048), dtype=np.float32).astype(np.float16)
        out[f"{name}.bias"] = rng.standard_normal(1023, dtype=np.float32)
    return out


def name_of(shard):
    return f"model-{shard + 1:05d}-of-{SHARDS:05d}.safetensors"


def generate(root):
    from safetensors.numpy import save_file

    manifest, where = {}, {}
    for shard in range(SHARDS):
        t = tensors(shard)
        save_file(t, os.path.join(root, name_of(shard)))
        for name, value in t.items():
            manifest[name] = digest(np.ascontiguousarray(value))
            where[name] = name_of(shard)
    with open(os.path.join(root, "model.safetensors.index.json"), "w") as f:
        json.dump({"metadata": {}, "weight_map": where}, f)
    return manifest


def check(root, want):
    import torch
    from safetensors import safe_open
    from safetensors.torch import load_file

    with open(os.path.join(root, "model.safetensors.index.json")) as f:
        where = json.load(f)["weight_map"]

    got = {}
    for shard in sorted(set(where.values())):
        for name, value in load_file(os.path.join(root, shard)).items():
            got[name] = digest(value.numpy())
    compare("load_file", got, want)

    got = {}
    order = list(where)
    np.random.default_rng(SEED).shuffle(order)
    for name in order:  # as a loader does that wants one rank's tensors
        with safe_open(os.path.join(root, where[name]), framework="pt") as f:
            whole = f.get_slice(name)
            rows = whole.get_shape()[0]
            parts = [whole[a:min(a + 200, rows)] for a in range(0, rows, 200)]
            got[name] = digest(torch.cat(parts).contiguous().numpy())
    compare("safe_open by slices", got, want)


if __name__ == "__main__":
    main(generate, check)

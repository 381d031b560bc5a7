"""WebDataset: shuffled shards read by a PyTorch DataLoader with four workers."""

import os

import numpy as np

import images
from common import SEED, add, compare, digest, main

SHARDS = 8
PER_SHARD = 90


def generate(root):
    import webdataset as wds

    rng = np.random.default_rng(SEED)
    manifest = {}
    pool = [images.jpeg(rng, 500, 400) for _ in range(64)]
    with wds.ShardWriter(os.path.join(root, "train-%06d.tar"), maxcount=PER_SHARD, verbose=0) as out:
        for i in range(SHARDS * PER_SHARD):
            # Bytes after a JPEG's end are ignored by decoders: each sample is of its own.
            data = pool[i % len(pool)] + rng.bytes(int(rng.integers(0, 60_000)))
            label = int(rng.integers(1000))
            key = f"sample{i:08d}"
            out.write({"__key__": key, "jpg": data, "cls": label})
            manifest[key] = digest(data, str(label))
    return manifest


def check(root, want):
    import webdataset as wds
    from torch.utils.data import DataLoader

    urls = os.path.join(root, "train-{000000..%06d}.tar" % (SHARDS - 1))
    dataset = wds.WebDataset(urls, shardshuffle=100, seed=SEED).shuffle(200).to_tuple("__key__", "jpg", "cls")
    loader = DataLoader(dataset, batch_size=None, num_workers=4)
    got = {}
    for key, data, label in loader:
        add(got, key, digest(data, label.decode()))
    compare("WebDataset", got, want)

    # The other way people read shards: through a pipe.
    dataset = wds.WebDataset(f"pipe:cat '{os.path.join(root, 'train-000003.tar')}'", shardshuffle=False)
    part = {s["__key__"]: digest(s["jpg"], s["cls"].decode()) for s in dataset}
    compare("WebDataset by pipe", part, {k: want[k] for k in sorted(want)[3 * PER_SHARD:4 * PER_SHARD]})


if __name__ == "__main__":
    main(generate, check)

"""MosaicML Streaming: shards read in place, and from a remote that is the mount."""

import os
import shutil
import tempfile

import numpy as np

from common import SEED, add, compare, digest, main

SAMPLES = 3000


def generate(root):
    from streaming import MDSWriter

    rng = np.random.default_rng(SEED)
    manifest = {}
    plain = os.path.join(root, "plain")
    packed = os.path.join(root, "packed")
    columns = {"id": "int", "text": "str", "data": "bytes", "grid": "ndarray"}
    with MDSWriter(out=plain, columns=columns, size_limit=1 << 23) as a, \
            MDSWriter(out=packed, columns=columns, size_limit=1 << 23, compression="zstd", hashes=["sha1"]) as b:
        for i in range(SAMPLES):
            s = {"id": i, "text": f"sample {i}", "data": rng.bytes(int(rng.integers(1000, 30_000))),
                 "grid": rng.integers(0, 1000, (7, 11), dtype=np.int32)}
            a.write(s)
            b.write(s)
            manifest[str(i)] = digest(s["text"], s["data"], s["grid"])
    return manifest


def check(root, want):
    from streaming import StreamingDataset
    from streaming.base.util import clean_stale_shared_memory
    from torch.utils.data import DataLoader

    def sum_of(s):
        return digest(s["text"], s["data"], np.ascontiguousarray(s["grid"]))

    clean_stale_shared_memory()
    scratch = tempfile.mkdtemp()
    try:
        # The mount is the local directory: samples are read at random offsets in place.
        dataset = StreamingDataset(local=os.path.join(root, "plain"), shuffle=False, batch_size=1)
        got = {}
        for i in np.random.default_rng(SEED).permutation(len(dataset)):
            s = dataset[int(i)]
            add(got, str(s["id"]), sum_of(s))
        compare("StreamingDataset in place", got, want)
        del dataset
        clean_stale_shared_memory()

        # The mount is the remote: shards are copied, unpacked and verified, shuffled reads.
        dataset = StreamingDataset(remote=os.path.join(root, "packed"), local=os.path.join(scratch, "local"),
                                   shuffle=True, shuffle_seed=SEED, validate_hash="sha1", batch_size=16)
        got = {}
        for batch in DataLoader(dataset, batch_size=16, num_workers=4, collate_fn=list):
            for s in batch:
                got[str(s["id"])] = sum_of(s)  # padding of the last batch may repeat a sample
        compare("StreamingDataset from a remote", got, want)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


if __name__ == "__main__":
    main(generate, check)

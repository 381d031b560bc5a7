"""Makes the demonstration's data: a tree of JPEGs by class, and the same pictures, twice, in
WebDataset shards.

    generate.py DIR IMAGES
"""

import io
import multiprocessing
import os
import sys

import numpy as np
from PIL import Image

CLASSES = 20
SHARDS = 8


PICTURES = 400  # to draw; the others have the same pixels and another comment


def jpeg(seed):
    """A JPEG of about 100 KB: a smooth picture with grain."""
    rng = np.random.default_rng(seed)
    width, height = int(rng.integers(420, 560)), int(rng.integers(320, 460))
    small = rng.integers(0, 256, (height // 40 + 2, width // 40 + 2, 3), dtype=np.uint8)
    smooth = np.asarray(Image.fromarray(small).resize((width, height), Image.BICUBIC))
    grain = rng.integers(-22, 23, (height, width, 1), dtype=np.int16)
    out = io.BytesIO()
    Image.fromarray(np.clip(smooth + grain, 0, 255).astype(np.uint8)).save(out, "JPEG", quality=90)
    return out.getvalue()


def commented(data, text):
    """The JPEG with a comment segment after its first marker."""
    return data[:2] + b"\xff\xfe" + (len(text) + 2).to_bytes(2, "big") + text + data[2:]


def main(root, count):
    tree, shards = os.path.join(root, "tree"), os.path.join(root, "shards")
    for c in range(CLASSES):
        os.makedirs(os.path.join(tree, f"class{c:03d}"))
    os.makedirs(shards)
    with multiprocessing.Pool() as pool:
        pictures = pool.map(jpeg, range(PICTURES), chunksize=8)
    for i in range(count):
        with open(os.path.join(tree, f"class{i % CLASSES:03d}", f"img{i:06d}.jpg"), "wb") as f:
            f.write(commented(pictures[i % PICTURES], b"tree %d" % i))

    import webdataset as wds

    order = np.random.default_rng(0).permutation(2 * count)
    for s in range(SHARDS):
        with wds.TarWriter(os.path.join(shards, f"train-{s:06d}.tar")) as out:
            for i in map(int, order[s::SHARDS]):
                out.write({"__key__": f"{i:08d}", "jpg": commented(pictures[i % PICTURES], b"shard %d" % i),
                           "cls": str(i % CLASSES)})


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))

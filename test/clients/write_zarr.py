"""zarr 3 in a local directory: each chunk is written as NAME.UUID.partial and renamed; arrays
grow, are written again in part, are sharded, and are removed."""

import numpy as np
import zarr

from saving import SEED, digest, main, same, tree


def data(i, *shape):
    return np.random.default_rng([SEED, i]).standard_normal(shape)


def save(place):
    got = {}
    root = zarr.create_group(store=place.path("store"))
    a = root.create_array("a", shape=(900, 800), chunks=(100, 100), dtype="f8")
    a[:] = data(1, 900, 800)
    a[150:450, 333:555] = data(2, 300, 222)
    want = data(1, 900, 800)
    want[150:450, 333:555] = data(2, 300, 222)
    got["a"] = digest(want)

    b = root.create_array("deep/er/b", shape=(512, 512), chunks=(64, 64), shards=(256, 256), dtype="f4")
    b[:] = data(3, 512, 512).astype("f4")
    b[100:300, 100:300] = data(4, 200, 200).astype("f4")  # shards are read, changed and replaced
    want = data(3, 512, 512).astype("f4")
    want[100:300, 100:300] = data(4, 200, 200).astype("f4")
    got["b"] = digest(want)

    c = root.create_array("grows", shape=(0, 100), chunks=(10, 100), dtype="f8")
    for i in range(8):
        c.append(data(10 + i, 7, 100))
    got["grows"] = digest(np.concatenate([data(10 + i, 7, 100) for i in range(8)]))

    root.create_array("dropped", shape=(100,), chunks=(5,), dtype="f8")[:] = data(20, 100)
    del root["dropped"]
    root.attrs["note"] = "changed later"
    root.attrs["note"] = "as it stays"
    return got


def load(place):
    root = zarr.open_group(place.path("store"), mode="r")
    same("members", sorted(root), ["a", "deep", "grows"])
    same("note", root.attrs["note"], "as it stays")
    left = [k for k in tree(place.root) if ".partial" in k or "dropped" in k]
    same("what should not be left", left, [])
    return {"a": digest(root["a"][:]), "b": digest(root["deep/er/b"][:]), "grows": digest(root["grows"][:])}


if __name__ == "__main__":
    main(save, load)

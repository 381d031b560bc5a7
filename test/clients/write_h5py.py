"""h5py: HDF5 writes at any place of a file, takes locks, and opens files again to change them."""

import os
import sys

import h5py
import numpy as np

from saving import SEED, command, digest, main, names, same


def data(i, *shape):
    return np.random.default_rng([SEED, i]).standard_normal(shape)


def save(place):
    got = {}
    with h5py.File(place.path("plain.h5"), "w") as f:
        f["contiguous"] = data(1, 1000, 1000)
        f.create_dataset("group/chunked", data=data(2, 1000, 700), chunks=(100, 100), compression="gzip")
        f["group"].attrs["note"] = "x" * 5000
        f.create_dataset("dropped", data=data(3, 1000, 300))
    with h5py.File(place.path("plain.h5"), "r+") as f:
        try:
            h5py.File(place.path("plain.h5"), "r+", locking=True).close()
        except OSError:
            pass  # it is open for writing here already
        del f["dropped"]
        f["contiguous"][::7, 13] = data(4, 143)
        f["group/chunked"][350:650, 250:450] = data(5, 300, 200)
        f.create_dataset("grows", shape=(0, 512), maxshape=(None, 512), chunks=(64, 512), dtype="f4")
        for i in range(20):
            d = f["grows"]
            d.resize(d.shape[0] + 33, axis=0)
            d[-33:] = data(10 + i, 33, 512).astype("f4")
            f.flush()
    want = data(1, 1000, 1000)
    want[::7, 13] = data(4, 143)
    got["contiguous"] = digest(want)
    want = data(2, 1000, 700)
    want[350:650, 250:450] = data(5, 300, 200)
    got["chunked"] = digest(want)
    got["grows"] = digest(np.concatenate([data(10 + i, 33, 512).astype("f4") for i in range(20)]))

    # One writes while others read the same file.
    path = place.path("swmr.h5")
    with h5py.File(path, "w", libver="latest") as f:
        d = f.create_dataset("rows", shape=(0, 256), maxshape=(None, 256), chunks=(16, 256), dtype="f8")
        f.swmr_mode = True
        for i in range(10):
            d.resize(16 * (i + 1), axis=0)
            d[16 * i:] = data(100 + i, 16, 256)
            d.flush()
        seen = command(sys.executable, os.path.abspath(__file__), "--reader", path).strip()
        same("rows that another process sees", seen, digest(d[:]))
    got["rows"] = digest(np.concatenate([data(100 + i, 16, 256) for i in range(10)]))

    os.makedirs(place.path("split"))
    with h5py.File(place.path("split", "part-%d.h5"), "w", driver="family", memb_size=1 << 20) as f:
        f["wide"] = data(200, 800, 800)
    got["wide"] = digest(data(200, 800, 800))
    return got


def load(place):
    names(place.root, "plain.h5", "swmr.h5", "split")
    got = {}
    with h5py.File(place.path("plain.h5"), "r") as f:
        same("names", sorted(f), ["contiguous", "group", "grows"])
        same("note", f["group"].attrs["note"], "x" * 5000)
        got["contiguous"], got["chunked"] = digest(f["contiguous"][:]), digest(f["group/chunked"][:])
        got["grows"] = digest(f["grows"][:])
    with h5py.File(place.path("swmr.h5"), "r") as f:
        got["rows"] = digest(f["rows"][:])
    with h5py.File(place.path("split", "part-%d.h5"), "r", driver="family", memb_size=1 << 20) as f:
        got["wide"] = digest(f["wide"][:])
    return got


if __name__ == "__main__" and sys.argv[1] == "--reader":
    with h5py.File(sys.argv[2], "r", libver="latest", swmr=True) as f:
        print(digest(f["rows"][:]))
elif __name__ == "__main__":
    main(save, load)

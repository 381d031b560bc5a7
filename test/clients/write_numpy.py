"""numpy: save, savez, tofile, and memmap for writing: stores into a shared mapping, in a new
file, in an existing one, after its file was closed, and by several processes at once."""

import multiprocessing
import os

import numpy as np

from saving import SEED, digest, main, names, same

ROWS, COLS = 2000, 1000


def data(i, *shape):
    return np.random.default_rng([SEED, i]).standard_normal(shape)


def write_rows(path, worker, workers):
    m = np.memmap(path, mode="r+", dtype="f8", shape=(ROWS, COLS))
    for row in range(worker, ROWS, workers):
        m[row] = data(100 + row, COLS)
    m.flush()


def save(place):
    got = {}
    np.save(place.path("plain.npy"), data(1, 700, 700))
    got["plain"] = digest(data(1, 700, 700))
    np.savez(place.path("several.npz"), x=data(2, 300, 300), y=np.arange(1001))
    got["x"], got["y"] = digest(data(2, 300, 300)), digest(np.arange(1001))
    with open(place.path("raw.bin"), "ab") as f:
        for i in range(5):
            data(10 + i, 12345).tofile(f)
    got["raw"] = digest(np.concatenate([data(10 + i, 12345) for i in range(5)]))

    m = np.lib.format.open_memmap(place.path("mapped.npy"), mode="w+", dtype="f8", shape=(ROWS, COLS))
    m[:] = data(20, ROWS, COLS)
    m.flush()
    del m
    m = np.load(place.path("mapped.npy"), mmap_mode="r+")
    for i in range(0, ROWS, 17):
        m[i] = data(30 + i, COLS)
    reader = np.load(place.path("mapped.npy"))  # by read(), while the mapping is not flushed
    same("what read() sees of the stores", digest(reader), digest(np.array(m)))
    m[-1, -1] = 4.5
    del m  # no flush: an unmapping alone must do
    want = data(20, ROWS, COLS)
    for i in range(0, ROWS, 17):
        want[i] = data(30 + i, COLS)
    want[-1, -1] = 4.5
    got["mapped"] = digest(want)

    path = place.path("parallel.raw")
    with open(path, "wb") as f:
        f.truncate(ROWS * COLS * 8)
    workers = 3
    procs = [multiprocessing.Process(target=write_rows, args=(path, w, workers)) for w in range(workers)]
    for p in procs:
        p.start()
    for p in procs:
        p.join()
        same("exit code of a writer", p.exitcode, 0)
    got["parallel"] = digest(np.stack([data(100 + row, COLS) for row in range(ROWS)]))
    os.rename(path, place.path("parallel.bin"))
    return got


def load(place):
    names(place.root, "plain.npy", "several.npz", "raw.bin", "mapped.npy", "parallel.bin")
    z = np.load(place.path("several.npz"))
    return {
        "plain": digest(np.load(place.path("plain.npy"))),
        "x": digest(z["x"]),
        "y": digest(z["y"]),
        "raw": digest(np.fromfile(place.path("raw.bin"))),
        "mapped": digest(np.array(np.load(place.path("mapped.npy"), mmap_mode="r"))),
        "parallel": digest(np.array(np.memmap(place.path("parallel.bin"), mode="r", dtype="f8", shape=(ROWS, COLS)))),
    }


if __name__ == "__main__":
    main(save, load)

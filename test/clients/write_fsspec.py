"""fsspec's local filesystem: transactions (a temporary file elsewhere, then a move), appends,
moves, recursive copies and removals."""

import os

import fsspec

from saving import SEED, digest, main, names, same


def data(i, size=3 << 20):
    return (f"{SEED} {i} ".encode() * (size // 10))[:size]


def save(place):
    fs = fsspec.filesystem("file", auto_mkdir=True)
    with fs.transaction:
        for i in range(4):
            with fs.open(place.path("committed", f"{i}.bin"), "wb") as f:
                f.write(data(i))
        same("what a transaction shows before its end", fs.exists(place.path("committed", "0.bin")), False)
    with fs.transaction:
        with fs.open(place.path("committed", "1.bin"), "wb") as f:  # over an existing one
            f.write(data(11, 1 << 20))
    try:
        with fs.transaction:
            with fs.open(place.path("committed", "0.bin"), "wb") as f:
                f.write(b"never seen")
            raise KeyError("taken back")
    except KeyError:
        pass
    with fs.open(place.path("log.txt"), "ab") as f:
        f.write(b"one ")
    with fs.open(place.path("log.txt"), "ab") as f:
        f.write(b"two")
    fs.copy(place.path("committed"), place.path("copied"), recursive=True)
    fs.mv(place.path("copied", "2.bin"), place.path("moved.bin"))
    fs.rm(place.path("copied", "3.bin"))
    fs.copy(place.path("committed"), place.path("dropped"), recursive=True)
    fs.rm(place.path("dropped"), recursive=True)
    fs.pipe_file(place.path("piped.bin"), data(20))
    fs.touch(place.path("empty"))
    return {"committed 0": digest(data(0)), "committed 1": digest(data(11, 1 << 20)), "committed 2": digest(data(2)),
            "committed 3": digest(data(3)), "log": digest(b"one two"), "copied 0": digest(data(0)),
            "moved": digest(data(2)), "piped": digest(data(20)), "empty": digest(b"")}


def load(place):
    names(place.root, "committed", "copied", "empty", "log.txt", "moved.bin", "piped.bin")
    names(place.path("committed"), "0.bin", "1.bin", "2.bin", "3.bin")
    names(place.path("copied"), "0.bin", "1.bin")
    fs = fsspec.filesystem("file")
    got = {f"committed {i}": digest(fs.cat_file(place.path("committed", f"{i}.bin"))) for i in range(4)}
    got.update({"log": digest(fs.cat_file(place.path("log.txt"))), "copied 0": digest(fs.cat_file(os.path.join(place.root, "copied/0.bin"))),
                "moved": digest(fs.cat_file(place.path("moved.bin"))), "piped": digest(fs.cat_file(place.path("piped.bin"))),
                "empty": digest(fs.cat_file(place.path("empty")))})
    return got


if __name__ == "__main__":
    main(save, load)

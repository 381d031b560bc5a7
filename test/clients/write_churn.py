"""Plain calls, of which other clients here are made, close together: a name is made, written and
soon unlinked, replaced or renamed, at each moment of what publishes it. What is gone stays gone."""

import errno
import os
import time

from saving import SEED, digest, main, names, same

ROUNDS = 60


def content(i, n=9000):
    return (f"{SEED} {i} ".encode() * n)[:n]


def write(path, data):
    with open(path, "wb") as f:
        f.write(data)


def gone(path, what):
    try:
        same(f"{what}: its size", os.stat(path).st_size, "no such file")
    except FileNotFoundError:
        pass
    same(f"{what}: in the listing", os.path.basename(path) in os.listdir(os.path.dirname(path)), False)
    try:
        os.unlink(path)
        same(f"{what}: unlink again", "done", "ENOENT")
    except OSError as e:
        same(f"{what}: unlink again", errno.errorcode[e.errno], "ENOENT")


def save(place):
    got = {}
    for i in range(ROUNDS):
        wait = i % 20 * 0.002  # from before an upload begins until after it ended

        for k in range(6):  # as SQLite: made and removed again and again
            path = place.path("a.db-journal")
            write(path, content(i))
            time.sleep(wait / 4 + k * 0.0005)
            os.unlink(path)
            gone(path, f"round {i}.{k}, {wait * 1000:.0f} ms, unlinked")

        path, final = place.path(f"part{i % 7}"), place.path(f"final{i % 5}")  # renamed over one that is there
        write(path, content(i + 1000, 20000 + i))
        time.sleep(wait)
        os.rename(path, final)
        gone(path, f"round {i}, {wait * 1000:.0f} ms, renamed")
        with open(final, "rb") as f:
            same(f"round {i}: what was renamed", digest(f.read()), digest(content(i + 1000, 20000 + i)))
        got[f"final{i % 5}"] = digest(content(i + 1000, 20000 + i))

        path = place.path("log")  # appended to, opened each time
        with open(path, "ab") as f:
            f.write(f"line {i}\n".encode())
        same(f"round {i}: size of the log", os.stat(path).st_size, sum(len(f"line {k}\n") for k in range(i + 1)))
        os.utime(place.path("log"), ns=(10**18 + i, 10**18 + i))
        time.sleep(wait)
        same(f"round {i}: time of the log", os.stat(path).st_mtime_ns, 10**18 + i)
    got["log"] = digest("".join(f"line {k}\n" for k in range(ROUNDS)))
    return got


def load(place):
    names(place.root, "log", *(f"final{i}" for i in range(5)))
    if place.metadata:
        same("time of the log", os.stat(place.path("log")).st_mtime_ns, 10**18 + ROUNDS - 1)
    got = {}
    for name in os.listdir(place.root):
        with open(place.path(name), "rb") as f:
            got[name] = digest(f.read())
    return got


if __name__ == "__main__":
    main(save, load)

"""TensorStore's file driver: zarr, zarr3 and OCDBT; each with the locks of open files, with lock
files and with none, and once with direct I/O. It locks, renames the open file and fsyncs the directory."""

import os

import numpy as np
import tensorstore as ts

from saving import SEED, digest, main, same, tree

LOCKING = {"os": {"mode": "os"}, "lockfile": {"mode": "lockfile"}, "none": {"mode": "none"}}


def data(i):
    return np.random.default_rng([SEED, i]).standard_normal((300, 400)).astype("f4")


def spec(place, driver, locking, direct=False):
    store = {"driver": "file", "path": place.path(driver, locking + ("-direct" if direct else "")) + "/",
             "file_io_locking": LOCKING[locking], "file_io_sync": True}
    if direct:
        store["file_io_mode"] = {"mode": "direct"}
    if driver == "ocdbt":
        base = {k: v for k, v in store.items()}
        return {"driver": "zarr", "kvstore": {"driver": "ocdbt", "base": base, "path": "array/"}}
    return {"driver": driver, "kvstore": store}


def cases():
    n = 0
    for driver in ("zarr", "zarr3", "ocdbt"):
        for locking in LOCKING:
            yield n, driver, locking, False
            n += 1
    yield n, "zarr", "os", True


def save(place):
    got = {}
    for n, driver, locking, direct in cases():
        a = ts.open(spec(place, driver, locking, direct), create=True, dtype=ts.float32, shape=[300, 400],
                    chunk_layout=ts.ChunkLayout(chunk_shape=[100, 100])).result()
        a.write(data(n)).result()
        a[50:150, 120:220].write(data(n + 100)[:100, :100]).result()  # chunks that are there
        want = data(n)
        want[50:150, 120:220] = data(n + 100)[:100, :100]
        got[f"{driver} {locking} {direct}"] = digest(want)
    store = ts.KvStore.open({"driver": "file", "path": place.path("kv") + "/"}).result()
    for i in range(50):
        store.write(f"d/{i % 5}/{i}", f"{SEED} {i}".encode()).result()
    t = ts.Transaction(atomic=False)
    store.with_transaction(t)["d/0/0"] = b"by a transaction"
    t.commit_async().result()
    store.delete_range(ts.KvStore.KeyRange("d/4/", "d/5/")).result()
    got["kv"] = digest(*sum(([k.decode(), store[k]] for k in sorted(store.list().result())), []))
    return got


def load(place):
    left = [k for k in tree(place.root) if "__lock" in k]
    same("locks that are left", left, [])
    got = {}
    for _, driver, locking, direct in cases():
        a = ts.open(spec(place, driver, locking, direct), open=True).result()
        got[f"{driver} {locking} {direct}"] = digest(np.ascontiguousarray(a.read().result()))
    store = ts.KvStore.open({"driver": "file", "path": place.path("kv") + "/"}).result()
    got["kv"] = digest(*sum(([k.decode(), store[k]] for k in sorted(store.list().result())), []))
    return got


if __name__ == "__main__":
    main(save, load)

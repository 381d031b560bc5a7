"""SQLite: a database with a rollback journal, one with a write-ahead log (which shares memory
by mmap) and two processes that write to it in turns, vacuum, and a transaction that is rolled back."""

import hashlib
import multiprocessing
import os
import sqlite3

from saving import SEED, main, same

ROWS = 300


def blob(i):
    return hashlib.sha256(f"{SEED} {i}".encode()).digest() * 40  # 1280 bytes


def sums(db):
    same("PRAGMA integrity_check", db.execute("PRAGMA integrity_check").fetchall(), [("ok",)])
    h = hashlib.sha256()
    for key, value in db.execute("SELECT key, value FROM t ORDER BY key"):
        h.update(f"{key} ".encode() + value)
    return {"rows": str(db.execute("SELECT count(*) FROM t").fetchone()[0]), "content": h.hexdigest()}


def fill(db):
    db.execute("CREATE TABLE t (key INTEGER PRIMARY KEY, value BLOB)")
    for start in range(0, ROWS, 30):
        with db:
            db.executemany("INSERT INTO t VALUES (?, ?)", [(i, blob(i)) for i in range(start, start + 30)])
    with db:
        db.execute("UPDATE t SET value = ? WHERE key % 7 = 0", (blob(-1),))
    db.execute("BEGIN")
    db.execute("DELETE FROM t")
    db.execute("ROLLBACK")


def turns(path, worker):
    with sqlite3.connect(path, timeout=60) as db:
        for i in range(40):
            with db:
                db.execute("INSERT INTO t VALUES (?, ?)", (100_000 + 1000 * worker + i, blob(i)))
    db.close()


def expected(extra):
    db = sqlite3.connect(":memory:")
    db.isolation_level = None
    fill(db)
    for worker in range(2 if extra else 0):
        for i in range(40):
            db.execute("INSERT INTO t VALUES (?, ?)", (100_000 + 1000 * worker + i, blob(i)))
    return sums(db)


def save(place):
    got = {}
    for name, mode in (("journal", "delete"), ("persist", "persist"), ("wal", "wal")):
        path = place.path(name + ".db")
        db = sqlite3.connect(path, timeout=60)
        same("journal mode", db.execute(f"PRAGMA journal_mode={mode}").fetchone(), (mode,))
        db.isolation_level = None
        fill(db)
        if mode == "wal":
            same("the write-ahead log and its index", sorted(os.listdir(place.root))[-3:], ["wal.db", "wal.db-shm", "wal.db-wal"])
            workers = [multiprocessing.Process(target=turns, args=(path, w)) for w in range(2)]
            for w in workers:
                w.start()
            for w in workers:
                w.join()
                same("exit code of a writer", w.exitcode, 0)
        else:
            db.execute("VACUUM")
        for k, v in sums(db).items():
            got[f"{name} {k}"] = v
        same(f"{name}: content", sums(db), expected(mode == "wal"))
        db.close()
    return got


def load(place):
    got = {}
    for name in ("journal", "persist", "wal"):
        db = sqlite3.connect(place.path(name + ".db"), timeout=60)
        for k, v in sums(db).items():
            got[f"{name} {k}"] = v
        db.close()
    return got


if __name__ == "__main__":
    main(save, load)

"""pyarrow: Parquet read whole, by columns, by row groups, mapped, and as a dataset."""

import os

import numpy as np

from common import SEED, compare, digest, main

FILES = 3
ROWS = 400_000
GROUP = 50_000


def values(i):
    rng = np.random.default_rng([SEED, i])
    return {
        "id": np.arange(i * ROWS, (i + 1) * ROWS, dtype=np.int64),
        "x": rng.standard_normal(ROWS),
        "y": rng.standard_normal(ROWS).astype(np.float32),
        "label": rng.integers(0, 100, ROWS, dtype=np.int32),
        "text": np.array([f"row {n} {'x' * (n % 50)}" for n in rng.integers(0, 1 << 40, ROWS)]),
    }


def sum_of(name, column):
    if name == "text":
        return digest("\0".join(column.to_pylist() if hasattr(column, "to_pylist") else column))
    return digest(np.ascontiguousarray(column.to_numpy() if hasattr(column, "to_numpy") else column))


def generate(root):
    import pyarrow as pa
    import pyarrow.parquet as pq

    manifest = {}
    for i in range(FILES):
        v = values(i)
        pq.write_table(pa.table(v), os.path.join(root, f"part-{i}.parquet"), row_group_size=GROUP, compression="zstd")
        for name, column in v.items():
            manifest[f"part-{i} {name}"] = sum_of(name, column)
    v0, v1 = values(0), values(1)
    rows = slice(2 * GROUP, 3 * GROUP)
    manifest["rows x"], manifest["rows y"] = sum_of("x", v0["x"][rows]), sum_of("y", v0["y"][rows])
    ids = []
    for i in range(FILES):
        v = values(i)
        ids.append(v["id"][(v["label"] == 7) & (v["x"] > 0)])
    manifest["scan id"] = sum_of("id", np.concatenate(ids))
    manifest["second id"] = sum_of("id", v1["id"])
    return manifest


def check(root, want):
    import pyarrow.dataset as ds
    import pyarrow.parquet as pq

    def path(i):
        return os.path.join(root, f"part-{i}.parquet")

    for mapped in (False, True):
        got = {}
        for i in range(FILES):
            t = pq.read_table(path(i), memory_map=mapped)
            for name in t.column_names:
                got[f"part-{i} {name}"] = sum_of(name, t[name])
        with pq.ParquetFile(path(0), memory_map=mapped, pre_buffer=not mapped) as f:
            t = f.read_row_group(2, columns=["x", "y"])
            got["rows x"], got["rows y"] = sum_of("x", t["x"]), sum_of("y", t["y"])
        t = ds.dataset(root, format="parquet").to_table(
            columns=["id"], filter=(ds.field("label") == 7) & (ds.field("x") > 0))
        got["scan id"] = sum_of("id", t["id"])
        got["second id"] = sum_of("id", pq.read_table(path(1), columns=["id"], memory_map=mapped)["id"])
        compare(f"Parquet, mapped: {mapped}", got, want)


if __name__ == "__main__":
    main(generate, check)

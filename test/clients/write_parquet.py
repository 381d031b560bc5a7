"""pyarrow: Parquet by row groups, a partitioned dataset written over, Arrow IPC, and a memory
map for writing."""

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.feather as feather
import pyarrow.parquet as pq

from saving import SEED, digest, main, names

ROWS = 200_000


def table(i, rows=ROWS):
    rng = np.random.default_rng([SEED, i])
    return pa.table({
        "id": np.arange(rows, dtype=np.int64),
        "x": rng.standard_normal(rows),
        "label": rng.integers(0, 5, rows, dtype=np.int32),
        "text": pa.array([f"row {n}" for n in rng.integers(0, 1 << 40, rows)]),
    })


def sums(name, t):
    return {f"{name} {c}": digest(repr(t[c].to_pylist()) if c == "text" else np.ascontiguousarray(t[c].to_numpy()))
            for c in t.column_names}


def save(place):
    got = {}
    with pq.ParquetWriter(place.path("grouped.parquet"), table(1).schema, compression="zstd") as w:
        for i in range(4):
            w.write_table(table(1).slice(i * ROWS // 4, ROWS // 4))
    got.update(sums("grouped", table(1)))

    pq.write_table(table(2), place.path("over.parquet"))
    pq.write_table(table(3, ROWS // 3), place.path("over.parquet"))  # shorter, in place
    got.update(sums("over", table(3, ROWS // 3)))

    for i in (4, 5):
        ds.write_dataset(table(i), place.path("parts"), format="parquet", partitioning=["label"],
                         existing_data_behavior="delete_matching", max_rows_per_file=20_000, max_rows_per_group=20_000)
    got.update(sums("parts", table(5).sort_by("id")))

    feather.write_feather(table(6), place.path("plain.arrow"), compression="uncompressed")
    got.update(sums("plain", table(6)))

    t = table(7)
    size = pa.MockOutputStream()
    with pa.ipc.new_file(size, t.schema) as w:
        w.write_table(t)
    with pa.create_memory_map(place.path("mapped.arrow"), size.size()) as m, pa.ipc.new_file(m, t.schema) as w:
        w.write_table(t)
    got.update(sums("mapped", t))
    return got


def load(place):
    names(place.root, "grouped.parquet", "over.parquet", "parts", "plain.arrow", "mapped.arrow")
    got = {}
    got.update(sums("grouped", pq.read_table(place.path("grouped.parquet"), memory_map=True)))
    got.update(sums("over", pq.read_table(place.path("over.parquet"))))
    schema = pa.schema([("label", pa.int32())])
    parts = ds.dataset(place.path("parts"), format="parquet", partitioning=ds.partitioning(schema)).to_table()
    got.update(sums("parts", parts.sort_by("id").select(["id", "x", "label", "text"])))
    got.update(sums("plain", feather.read_table(place.path("plain.arrow"))))
    with pa.memory_map(place.path("mapped.arrow")) as m, pa.ipc.open_file(m) as r:
        got.update(sums("mapped", r.read_all()))
    return got


if __name__ == "__main__":
    main(save, load)

"""Hugging Face datasets: Arrow files by load_from_disk (mmap), Parquet by load_dataset."""

import os
import tempfile

# Before the imports: nothing may go to the network, nor into the user's cache.
os.environ.update(HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1", HF_HUB_DISABLE_TELEMETRY="1")
scratch = tempfile.TemporaryDirectory()
os.environ.update(HF_HOME=scratch.name)

import numpy as np

from common import SEED, add, compare, digest, main

ROWS = 20_000


def rows():
    rng = np.random.default_rng(SEED)
    return {
        "id": list(range(ROWS)),
        "text": [f"document {i} " + "word " * int(rng.integers(0, 400)) for i in range(ROWS)],
        "tokens": [rng.integers(0, 50_000, int(rng.integers(1, 500))).tolist() for _ in range(ROWS)],
    }


def sum_of(row):
    return digest(row["text"], np.asarray(row["tokens"], dtype=np.int64))


def generate(root):
    from datasets import Dataset, DatasetDict, disable_progress_bars

    disable_progress_bars()
    data = rows()
    d = Dataset.from_dict(data)
    DatasetDict(train=d).save_to_disk(os.path.join(root, "arrow"), num_shards={"train": 3})
    os.mkdir(os.path.join(root, "parquet"))
    for i in range(3):
        d.shard(3, i, contiguous=True).to_parquet(os.path.join(root, "parquet", f"train-{i:05d}-of-00003.parquet"))
    return {str(i): sum_of({"text": data["text"][i], "tokens": data["tokens"][i]}) for i in range(ROWS)}


def check(root, want):
    from datasets import disable_progress_bars, load_dataset, load_from_disk

    disable_progress_bars()
    d = load_from_disk(os.path.join(root, "arrow"))["train"]
    if not d.cache_files or not d.cache_files[0]["filename"].startswith(root):
        raise SystemExit(f"the Arrow files are not read in place: {d.cache_files}")
    got = {}
    # Random access within the mapped files. The order is kept in memory: by default it would
    # be written beside them, and the data set may be read-only.
    for row in d.shuffle(seed=SEED, keep_in_memory=True):
        add(got, str(row["id"]), sum_of(row))
    compare("load_from_disk", got, want)

    d = load_dataset("parquet", data_files={"train": os.path.join(root, "parquet", "*.parquet")}, split="train")
    got = {}
    for row in d:
        add(got, str(row["id"]), sum_of(row))
    compare("load_dataset", got, want)

    d = load_dataset("parquet", data_dir=os.path.join(root, "parquet"), split="train", streaming=True)
    got = {}
    for row in d:
        add(got, str(row["id"]), sum_of(row))
    compare("load_dataset, streaming", got, want)


if __name__ == "__main__":
    main(generate, check)

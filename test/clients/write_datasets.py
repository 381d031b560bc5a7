"""Hugging Face datasets with its cache in the mount: built in NAME.incomplete and renamed, under
file locks; map and save_to_disk beside it, and everything mapped back."""

import os

from datasets import Dataset, load_dataset, load_from_disk

from saving import SEED, digest, main, same, tree

ROWS = 3000


def rows(n=ROWS):
    for i in range(n):
        yield {"id": i, "text": f"row {SEED} {i} " * (i % 20), "values": [float(i + k) for k in range(16)]}


def sums(name, d):
    return {f"{name} rows": str(len(d)), f"{name} content": digest(*(f"{r['id']} {r['text']} {r['values']}" for r in d))}


def save(place):
    cache = place.path("cache")
    built = Dataset.from_generator(rows, cache_dir=cache)
    source = place.beside("source.parquet")
    built.to_parquet(source)
    loaded = load_dataset("parquet", data_files=source, split="train", cache_dir=cache)
    mapped = loaded.map(lambda r: {"text": r["text"].upper()}, num_proc=2, cache_file_name=place.path("cache", "mapped.arrow"))
    mapped.save_to_disk(place.path("saved"), num_shards=3)
    built.to_json(place.path("rows.jsonl"))
    out = sums("built", built)
    out.update(sums("loaded", loaded))
    out.update(sums("mapped", mapped))
    same("the mapped text", mapped[19]["text"], loaded[19]["text"].upper())
    return out


def load(place):
    left = [k for k in tree(place.root) if ".incomplete" in k and not k.endswith(".lock")]
    same("what should not be left", left, [])
    out = {}
    for name, root in (("built", "generator"), ("loaded", "parquet")):
        files = [os.path.join(top, f) for top, _, fs in os.walk(place.path("cache", root)) for f in fs
                 if f.endswith(".arrow")]
        same(f"Arrow files of {name}", len(files), 1)
        out.update(sums(name, Dataset.from_file(files[0])))
    out.update(sums("mapped", load_from_disk(place.path("saved"))))
    return out


if __name__ == "__main__":
    main(save, load)

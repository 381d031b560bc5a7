"""torch.save and torch.load, also mapped: new files, over existing ones, through a file that
is fsynced, and by the replacement that trainers write themselves."""

import os

import torch

from saving import SEED, digest, main, names, same

MIB = 1 << 20


def state(step):
    g = torch.Generator().manual_seed(SEED + step)
    return {
        "step": step,
        "weight": torch.randn(1024, 4096, generator=g),  # 16 MiB
        "half": torch.randn(2048, 1023, generator=g).to(torch.bfloat16),
        "small": {f"layer.{i}": torch.randn(i + 1, generator=g) for i in range(64)},
        "empty": torch.empty(0),
    }


def sums(name, s):
    out = {f"{name} step": str(s["step"]), f"{name} empty": str(list(s["empty"].shape))}
    for k, t in [("weight", s["weight"]), ("half", s["half"]), *s["small"].items()]:
        out[f"{name} {k}"] = digest(t.contiguous().view(torch.uint8).numpy())
    return out


def save(place):
    torch.save(state(1), place.path("new.pt"))

    for step in (2, 3):
        torch.save(state(step), place.path("over.pt"))

    # What is mapped from a file that is then saved over by a rename stays what it was.
    torch.save(state(4), place.path("replaced.pt"))
    mapped = torch.load(place.path("replaced.pt"), mmap=True, weights_only=True)
    torch.save(state(5), place.path("replaced.pt.tmp"))
    os.replace(place.path("replaced.pt.tmp"), place.path("replaced.pt"))
    same("a mapping of the file that was replaced", sums("old", mapped), sums("old", state(4)))

    with open(place.path("synced.pt"), "wb") as f:
        torch.save(state(6), f)
        f.flush()
        os.fsync(f.fileno())

    os.makedirs(place.path("step-7", "deep"))
    torch.save(state(7), place.path("step-7", "deep", "old-format.pt"), _use_new_zipfile_serialization=False)
    return {k: v for n, s in WANT for k, v in sums(n, state(s)).items()}


WANT = [("new.pt", 1), ("over.pt", 3), ("replaced.pt", 5), ("synced.pt", 6), ("step-7/deep/old-format.pt", 7)]


def load(place):
    names(place.root, "new.pt", "over.pt", "replaced.pt", "synced.pt", "step-7")
    got = {}
    for name, _ in WANT:
        got.update(sums(name, torch.load(place.path(name), weights_only=True)))
        if "old-format" not in name:
            mapped = torch.load(place.path(name), mmap=True, weights_only=True)
            same(f"{name} mapped and read", sums(name, mapped), {k: v for k, v in got.items() if k.startswith(name + " ")})
    return got


if __name__ == "__main__":
    main(save, load)

"""A checkpoint of DeepSpeed's engine, by its own calls and without DeepSpeed: torch.save for each
rank, the file `latest` written over in place, a script copied and made executable (a chmod that
fails would end the save)."""

import os
import shutil
import stat

import torch

from saving import SEED, digest, main, names, same

RANKS = 2


def state(step, rank):
    g = torch.Generator().manual_seed(SEED + 10 * step + rank)
    return {f"{kind}.{i}": torch.randn(300, 500 + i, generator=g) for kind in ("fp32", "exp_avg") for i in range(3)}


def sums(step, rank, s):
    return {f"{step} {rank} {k}": digest(t.numpy()) for k, t in s.items()}


def file_of(rank):
    return f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt"


def save(place):
    script = place.beside("zero_to_fp32.py")
    with open(script, "w") as f:
        f.write("#!/usr/bin/env python\nprint('consolidates')\n" * 200)
    got = {}
    for step in (1, 2, 3):
        d = place.path(f"global_step{step}")
        os.makedirs(d, exist_ok=True)
        torch.save({"step": step, "module": state(step, 9)}, os.path.join(d, "mp_rank_00_model_states.pt"))
        got.update(sums(step, 9, state(step, 9)))
        for rank in range(RANKS):
            torch.save(state(step, rank), os.path.join(d, file_of(rank)))
            got.update(sums(step, rank, state(step, rank)))
        copied = place.path("zero_to_fp32.py")
        shutil.copyfile(script, copied)
        os.chmod(copied, os.stat(copied).st_mode | stat.S_IEXEC)
        with open(place.path("latest"), "w") as f:
            f.write(f"global_step{step}")
    return got


def load(place):
    names(place.root, "global_step1", "global_step2", "global_step3", "latest", "zero_to_fp32.py")
    with open(place.path("latest")) as f:
        same("latest", f.read(), "global_step3")
    with open(place.path("zero_to_fp32.py"), "rb") as f, open(place.beside("zero_to_fp32.py"), "rb") as g:
        same("the script", digest(f.read()), digest(g.read()))
    if place.metadata:
        same("the script is executable", bool(os.stat(place.path("zero_to_fp32.py")).st_mode & stat.S_IEXEC), True)
    got = {}
    for step in (1, 2, 3):
        d = place.path(f"global_step{step}")
        names(d, "mp_rank_00_model_states.pt", *(file_of(r) for r in range(RANKS)))
        got.update(sums(step, 9, torch.load(os.path.join(d, "mp_rank_00_model_states.pt"), weights_only=True)["module"]))
        for rank in range(RANKS):
            got.update(sums(step, rank, torch.load(os.path.join(d, file_of(rank)), mmap=True, weights_only=True)))
    return got


if __name__ == "__main__":
    main(save, load)

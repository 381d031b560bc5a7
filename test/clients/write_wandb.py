"""W&B, offline: its log is appended to, artifacts are staged and copied, and a symbolic link names
the latest run."""

import glob
import os

import wandb

from saving import SEED, digest, main, same, target

STEPS = 50


def save(place):
    for n in (1, 2):
        with wandb.init(project="writes", dir=place.root, mode="offline", id=f"run{n}", settings=wandb.Settings(console="off", silent=True)) as run:
            for i in range(STEPS):
                run.log({"loss": n / (i + 1)})
            with open(os.path.join(run.dir, "notes.txt"), "w") as f:
                f.write(f"{SEED} {n} " * 1000)
    wandb.teardown()  # its service writes the end of the last log after that run is over for who made it
    out = {f"notes {n}": digest(f"{SEED} {n} " * 1000) for n in (1, 2)}
    for n in (1, 2):
        out[f"log {n}"] = log(place, n)
    return out


def directory(place, n):
    runs = glob.glob(place.path("wandb", f"offline-run-*-run{n}"))
    same(f"directories of run {n}", len(runs), 1)
    return runs[0]


def log(place, n):
    """The sum of a run's log, which holds a record of each step."""
    with open(os.path.join(directory(place, n), f"run-run{n}.wandb"), "rb") as f:
        raw = f.read()
    same(f"the log of run {n} begins as it should", raw[:4], b":W&B")
    same(f"the log of run {n} has all steps", raw.count(b"loss") >= STEPS, True)
    return digest(raw)


def load(place):
    got = {}
    for n in (1, 2):
        with open(os.path.join(directory(place, n), "files", "notes.txt")) as f:
            got[f"notes {n}"] = digest(f.read())
        got[f"log {n}"] = log(place, n)
    same("latest-run", target(place, "wandb", "latest-run"), os.path.basename(directory(place, 2)))
    return got


if __name__ == "__main__":
    main(save, load)

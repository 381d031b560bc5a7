"""W&B, offline: its log is appended to, artifacts are staged and copied, and a symbolic link names
the latest run."""

import glob
import os

import wandb

from saving import SEED, digest, main, same

STEPS = 50


def save(place):
    for n in (1, 2):
        with wandb.init(project="writes", dir=place.root, mode="offline", id=f"run{n}", settings=wandb.Settings(console="off", silent=True)) as run:
            for i in range(STEPS):
                run.log({"loss": n / (i + 1)})
            with open(os.path.join(run.dir, "notes.txt"), "w") as f:
                f.write(f"{SEED} {n} " * 1000)
    return {f"notes {n}": digest(f"{SEED} {n} " * 1000) for n in (1, 2)} | {f"records {n}": "more than the steps" for n in (1, 2)}


def load(place):
    from wandb.proto import wandb_internal_pb2
    from wandb.sdk.internal.datastore import DataStore

    got = {}
    for n in (1, 2):
        runs = glob.glob(place.path("wandb", f"offline-run-*-run{n}"))
        same(f"directories of run {n}", len(runs), 1)
        with open(os.path.join(runs[0], "files", "notes.txt")) as f:
            got[f"notes {n}"] = digest(f.read())
        log, losses = DataStore(), []
        log.open_for_scan(os.path.join(runs[0], f"run-run{n}.wandb"))
        while (raw := log.scan_data()) is not None:
            record = wandb_internal_pb2.Record()
            record.ParseFromString(raw)
            losses += [1 for item in record.history.item if item.key == "loss" or list(item.nested_key) == ["loss"]]
        got[f"records {n}"] = "more than the steps" if len(losses) >= STEPS else f"{len(losses)}"
        if n == 2:
            same("latest-run", os.readlink(place.path("wandb", "latest-run")), os.path.basename(runs[0]))
    return got


if __name__ == "__main__":
    main(save, load)

"""The writer of Megatron's distributed checkpoints, by its own calls: one process is forked for
each bucket, while the parent has files of the directory open; the child writes, fsyncs, closes
and ends. Markers say what is unfinished; the oldest checkpoint is removed as a tree."""

import io
import os
import pickle
import shutil
import sys

import torch

from saving import SEED, digest, main, names, same

BUCKETS = 4
STEPS = 3


def bucket(step, i):
    g = torch.Generator().manual_seed(SEED + 100 * step + i)
    return [torch.randn(256, 1000 + k, generator=g) for k in range(8)]


def write_bucket(path, tensors):
    """In a child, as FileSystemWriterAsync.write_preloaded_data: each tensor a torch.save of its
    own in one stream."""
    with open(path, "wb") as stream:
        for t in tensors:
            torch.save(t, stream)
        os.fsync(stream.fileno())


def save_step(root, step):
    d = os.path.join(root, f"iter_{step:07d}")
    os.makedirs(d)
    unfinished = d + "-unfinished"
    open(unfinished, "w").close()
    held = open(os.path.join(d, "common.pt"), "wb")  # every child has it, and closes it
    held.write(b"head ")
    children = []
    for i in range(BUCKETS):
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                write_bucket(os.path.join(d, f"__0_{i}.distcp"), bucket(step, i))
                os.close(held.fileno())
                code = 0
            except BaseException as e:  # a child never returns from here
                print(f"child {i}: {e!r}", file=sys.stderr, flush=True)
            os._exit(code)
        children.append(pid)
    for pid in children:
        same(f"exit status of child {pid}", os.waitpid(pid, 0)[1], 0)
    held.write(b"tail")  # after four children closed it
    held.flush()
    os.fsync(held.fileno())
    held.close()
    with open(os.path.join(d, ".metadata"), "wb") as f:
        pickle.dump({"step": step, "files": BUCKETS}, f)
        f.flush()
        os.fsync(f.fileno())
    tracker = os.path.join(root, "latest_checkpointed_iteration.txt")
    with open(tracker, "w") as f:  # written in place, as Megatron does
        f.write(str(step))
    os.remove(unfinished)


def sums(step, tensors):
    return {f"{step} {i} {k}": digest(t.numpy()) for i, b in enumerate(tensors) for k, t in enumerate(b)}


def save(place):
    for step in range(1, STEPS + 1):
        save_step(place.root, step)
        if step > 2:
            shutil.rmtree(place.path(f"iter_{step - 2:07d}"))
    return {k: v for s in (2, 3) for k, v in sums(s, [bucket(s, i) for i in range(BUCKETS)]).items()}


def load(place):
    names(place.root, "iter_0000002", "iter_0000003", "latest_checkpointed_iteration.txt")
    with open(place.path("latest_checkpointed_iteration.txt")) as f:
        same("the latest iteration", f.read(), "3")
    got = {}
    for step in (2, 3):
        d = place.path(f"iter_{step:07d}")
        names(d, ".metadata", "common.pt", *(f"__0_{i}.distcp" for i in range(BUCKETS)))
        with open(os.path.join(d, "common.pt"), "rb") as f:
            same("common.pt", f.read(), b"head tail")
        with open(os.path.join(d, ".metadata"), "rb") as f:
            same(".metadata", pickle.load(f), {"step": step, "files": BUCKETS})
        tensors = []
        for i in range(BUCKETS):
            with open(os.path.join(d, f"__0_{i}.distcp"), "rb") as f:
                raw = io.BytesIO(f.read())
            tensors.append(list(split(raw)))
        got.update(sums(step, tensors))
    return got


def split(stream):
    """The tensors of a stream of archives: each ends with its end record, 22 bytes."""
    data, at = stream.getvalue(), 0
    while at < len(data):
        end = data.index(b"PK\x05\x06", at) + 22
        yield torch.load(io.BytesIO(data[at:end]), weights_only=True)
        at = end


if __name__ == "__main__":
    main(save, load)

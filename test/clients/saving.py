"""What the scripts that write share: the two phases, the sums and a few checks.

A script is called as

    write_X.py DIR --phase save --side SIDE [--metadata]    makes files in DIR with the client
    write_X.py DIR --phase load --side SIDE [--metadata]    reads them back and compares

SIDE is a directory on another filesystem; it holds the sums that the save recorded of what
it had in memory, and what a client copies from. With --metadata the load also asks for what a
bucket does not keep (times, modes, hard links); without it, for names and content only. There a
symbolic link may be an ordinary file that holds its target: a listing of a bucket tells no more.
All exit with 1 and a message on any difference.
"""

import argparse
import json
import os
import subprocess
import sys
import time

from common import SEED, compare, digest  # noqa: F401 (the scripts take them from here)


class Place:
    """Where a script works. It may be sent to other processes."""

    def __init__(self, root, side, metadata):
        self.root, self.side, self.metadata = root, side, metadata

    def path(self, *names):
        return os.path.join(self.root, *names)

    def beside(self, *names):
        return os.path.join(self.side, *names)


def main(save, load):
    """Runs a script. save(place) returns the sums {name: digest}; load(place) returns those of
    what it read."""
    p = argparse.ArgumentParser()
    p.add_argument("dir")
    p.add_argument("--phase", choices=["save", "load"], required=True)
    p.add_argument("--side", required=True)
    p.add_argument("--metadata", action="store_true")
    args = p.parse_args()
    os.makedirs(args.side, exist_ok=True)
    place = Place(os.path.abspath(args.dir), os.path.abspath(args.side), args.metadata)
    sums = place.beside("sums.json")
    start = time.monotonic()
    if args.phase == "save":
        if os.listdir(place.root):
            sys.exit(f"{place.root} is not empty: {sorted(os.listdir(place.root))[:5]}")
        begun = place.beside("begun")
        open(begun, "w").close()  # whoever kills the worker of the mount waits for it
        got = save(place)
        os.unlink(begun)
        if not got:
            sys.exit("nothing was saved")
        with open(sums, "w") as f:
            json.dump(got, f)
    else:
        with open(sums) as f:
            want = json.load(f)
        got = load(place)
        if not place.metadata:
            accept_links(got, want)
        compare("load", got, want)
    print(f"{args.phase}: {time.monotonic() - start:.2f} s without imports")


def accept_links(got, want):
    """Takes a file that holds the target of a link, as tree() tells of both, for the link."""
    for key, w in want.items():
        if w.startswith("-> ") and got.get(key) == digest(w[3:]):
            got[key] = w


def target(place, *names):
    """The target of a symbolic link, or of the file that stands for one: see above."""
    path = place.path(*names)
    if place.metadata or os.path.islink(path):
        return os.readlink(path)
    with open(path) as f:
        return f.read()


def same(what, got, want):
    """Exits with a message unless both are equal."""
    if got != want:
        sys.exit(f"{what}: {got!r:.2000}, want {want!r:.2000}")


def names(root, *want):
    """Exits with a message unless the directory holds these names and no others."""
    same(f"names in {root}", sorted(os.listdir(root)), sorted(want))


def command(*argv, cwd=None, env=None, ok=(0,)):
    """Runs a program and returns what it printed; exits with all it said when it fails."""
    r = subprocess.run(argv, cwd=cwd, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if r.returncode not in ok:
        sys.exit(f"{' '.join(argv)} (in {cwd or os.getcwd()}) ended with {r.returncode}:\n{r.stdout[-3000:]}")
    return r.stdout


def tree(root, skip=()):
    """The sums of every regular file and symbolic link under root, and empty directories."""
    out = {}
    for top, dirs, files in os.walk(root):
        dirs[:] = sorted(d for d in dirs if d not in skip)
        here = os.path.relpath(top, root)
        if not dirs and not files:
            out[here + "/"] = "empty directory"
        for name in dirs + files:
            path, key = os.path.join(top, name), os.path.normpath(os.path.join(here, name))
            if os.path.islink(path):
                out[key] = "-> " + os.readlink(path)
            elif name in files:
                with open(path, "rb") as f:
                    out[key] = digest(f.read())
    return out


def free_port():
    """A TCP port of this machine that nobody listens on now."""
    import socket

    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def ranks(n, f, *args):
    """Runs f(rank, *args) in n processes joined by gloo; returns what rank 0 returned. f is a
    function of a module. A rank that fails ends them all, with its own message."""
    import torch.multiprocessing as mp

    queue = mp.get_context("spawn").SimpleQueue()
    mp.start_processes(_rank, args=(n, free_port(), queue, f, args), nprocs=n, start_method="spawn")
    return queue.get()


def _rank(rank, n, port, queue, f, args):
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=n)
    try:
        got = f(rank, *args)
        if rank == 0:
            queue.put(got)
        dist.barrier()
    finally:
        dist.destroy_process_group()

"""git: clone, commits, branches, a merge, gc, and fsck; git links, renames and maps its files."""

import os

from saving import SEED, command, main, same, tree

ENV = dict(os.environ, GIT_CONFIG_GLOBAL="/dev/null", GIT_CONFIG_SYSTEM="/dev/null", GIT_AUTHOR_NAME="A", GIT_AUTHOR_EMAIL="a@example.org",
           GIT_COMMITTER_NAME="C", GIT_COMMITTER_EMAIL="c@example.org", GIT_AUTHOR_DATE="2024-02-29T12:00:00Z",
           GIT_COMMITTER_DATE="2024-02-29T12:00:00Z")


def git(cwd, *args):
    return command("git", *args, cwd=cwd, env=ENV).strip()


def write(root, n, name):
    os.makedirs(os.path.join(root, f"dir{n % 7}"), exist_ok=True)
    with open(os.path.join(root, f"dir{n % 7}", name), "w") as f:
        f.writelines(f"{SEED} {n} line {i}\n" for i in range(50 + n))


def commits(root, start, end):
    for n in range(start, end):
        write(root, n, f"file{n}.txt")
        if n % 5 == 0:
            write(root, n + 1000, "same.txt")
        git(root, "add", "-A")
        git(root, "commit", "-q", "-m", f"change {n}")


def save(place):
    upstream = place.beside("upstream")
    if not os.path.exists(upstream):
        git(None, "init", "-q", "-b", "main", upstream)
        commits(upstream, 0, 12)
        os.symlink("dir1/file1.txt", os.path.join(upstream, "link"))
        git(upstream, "add", "-A")
        git(upstream, "commit", "-q", "-m", "a link")

    clone = place.path("clone")
    git(place.root, "clone", "-q", "--no-local", upstream, clone)
    commits(clone, 20, 26)
    git(clone, "checkout", "-q", "-b", "side", "HEAD~3")
    commits(clone, 40, 43)
    git(clone, "mv", "dir1", "moved")
    git(clone, "commit", "-q", "-m", "a directory renamed")
    git(clone, "checkout", "-q", "main")
    git(clone, "merge", "-q", "--no-edit", "side")
    same("git status", git(clone, "status", "--porcelain"), "")
    git(clone, "gc", "-q")
    commits(clone, 60, 62)  # loose objects beside the pack
    git(clone, "fsck", "--full", "--strict")
    git(place.root, "clone", "-q", "--bare", "clone", "bare.git")
    return sums(place)


def sums(place):
    out = {f"tree {k}": v for k, v in tree(place.path("clone"), skip=(".git",)).items()}
    for name in ("clone", "bare.git"):
        out[name + " log"] = git(place.path(name), "log", "--all", "--format=%H %T %s")
    return out


def load(place):
    for name in ("clone", "bare.git"):
        git(place.path(name), "fsck", "--full", "--strict")
    if place.metadata:  # modes: git asks for the x bit and for links
        same("git status", git(place.path("clone"), "status", "--porcelain"), "")
    return sums(place)


if __name__ == "__main__":
    main(save, load)

"""rsync -a, tar x and cp -a of one tree with links, empty directories, modes and old times."""

import os

from saving import SEED, command, main, same, tree


def source(root):
    os.makedirs(os.path.join(root, "a", "b", "empty"))
    os.makedirs(os.path.join(root, "many"))
    for i in range(200):
        with open(os.path.join(root, "many", f"f{i:03d}"), "wb") as f:
            f.write(f"{SEED} {i} ".encode() * (i * i % 997))
    with open(os.path.join(root, "a", "large"), "wb") as f:
        for i in range(24):
            f.write(bytes([i]) * (1 << 20))
    with open(os.path.join(root, "a", "b", "script.sh"), "w") as f:
        f.write("#!/bin/sh\necho it runs\n")
    os.chmod(os.path.join(root, "a", "b", "script.sh"), 0o755)
    open(os.path.join(root, "a", "no bytes, and a name\nof two lines"), "w").close()
    with open(os.path.join(root, "Umlaut-äöü-漢字"), "w") as f:
        f.write("utf-8")
    os.symlink("b/script.sh", os.path.join(root, "a", "to-script"))
    os.symlink("nowhere/at/all", os.path.join(root, "dangling"))
    os.symlink("a", os.path.join(root, "to-directory"))
    os.link(os.path.join(root, "many", "f100"), os.path.join(root, "a", "second-name"))
    for top, dirs, files in os.walk(root, topdown=False):
        for name in files + dirs:
            path = os.path.join(top, name)
            os.utime(path, ns=(1_600_000_000_123_456_789,) * 2, follow_symlinks=False)
    os.chmod(os.path.join(root, "many", "f007"), 0o400)


def rsync_differences(place, *flags):
    return command("rsync", "-n", "-i", "-c", *flags, place.beside("source") + "/", place.path("rsync") + "/")


def check(place):
    """The copies' own comparisons, which also look at times, modes and links."""
    same("rsync -anciH", rsync_differences(place, "-aH", "--delete"), "")
    same("tar --compare", command("tar", "--compare", "-f", place.beside("source.tar"), "-C", place.path("tar")), "")
    command("diff", "-r", "--no-dereference", place.beside("source"), place.path("cp"))
    same("what cp -a -u would copy", command("cp", "-a", "-u", "-v", place.beside("source") + "/many", place.path("cp")), "")
    same("what a script prints", command(place.path("cp", "a", "to-script")), "it runs\n")


def save(place):
    src = place.beside("source")
    if not os.path.exists(src):
        os.makedirs(src)
        source(src)
        command("tar", "-cf", place.beside("source.tar"), "-C", src, ".")

    command("rsync", "-aH", src + "/", place.path("rsync") + "/")
    # A second run mends what differs, in place and by a new file, and removes what is too much.
    with open(place.path("rsync", "a", "large"), "r+b") as f:
        f.seek(5 << 20)
        f.write(b"not as it was")
    with open(place.path("rsync", "too-much"), "w") as f:
        f.write("x")
    os.unlink(place.path("rsync", "many", "f011"))
    os.rename(place.path("rsync", "a", "b"), place.path("rsync", "a", "c"))
    command("rsync", "-aHc", "--delete", "--inplace", src + "/a/", place.path("rsync", "a") + "/")
    command("rsync", "-aHc", "--delete", src + "/", place.path("rsync") + "/")

    os.mkdir(place.path("tar"))
    command("tar", "-xf", place.beside("source.tar"), "-C", place.path("tar"))
    command("tar", "-xf", place.beside("source.tar"), "-C", place.path("tar"))  # over what is there
    command("cp", "-a", src, place.path("cp"))
    check(place)
    return {f"{d} {k}": v for d in ("rsync", "tar", "cp") for k, v in tree(src).items()}


def load(place):
    if place.metadata:
        check(place)
    else:
        same("rsync -rnc", "".join(l for l in rsync_differences(place, "-r").splitlines(True) if "non-regular" not in l), "")
    return {f"{d} {k}": v for d in ("rsync", "tar", "cp") for k, v in tree(place.path(d)).items()}


if __name__ == "__main__":
    main(save, load)

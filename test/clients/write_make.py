"""make of a small C project with a library, and what is built again after a change: all of it
rests on times of files. The compiler's and the archiver's output is renamed, mapped and run."""

import os
import time

from saving import SEED, command, main, same, tree

FILES = 12

MAKEFILE = """\
OBJS := $(patsubst %.c,%.o,$(wildcard part*.c))
all: prog
prog: main.o libparts.a
	$(CC) -o $@ main.o -L. -lparts
libparts.a: $(OBJS)
	rm -f $@
	$(AR) rcs $@ $^
%.o: %.c parts.h
	$(CC) -O1 -c -o $@ $<
"""


def part(i, value):
    return f'#include "parts.h"\nint part{i}(int x) {{ return x * 31 + {value}; }}\n'


def project(root):
    os.makedirs(root)
    files = {"Makefile": MAKEFILE}
    for i in range(FILES):
        files[f"part{i}.c"] = part(i, (SEED + i) % 1000)
    files["parts.h"] = "".join(f"int part{i}(int x);\n" for i in range(FILES))
    calls = "".join(f"\tx = part{i}(x) % 1000003;\n" for i in range(FILES))
    files["main.c"] = f'#include <stdio.h>\n#include "parts.h"\nint main(void) {{\n\tint x = 1;\n{calls}\tprintf("%d\\n", x);\n\treturn 0;\n}}\n'
    for name, text in files.items():
        with open(os.path.join(root, name), "w") as f:
            f.write(text)


def result(values):
    x = 1
    for v in values:
        x = (x * 31 + v) % 1000003
    return f"{x}\n"


def make(root, *args, ok=(0,)):
    return command("make", "--no-print-directory", *args, cwd=root, ok=ok)


def save(place):
    root = place.path("project")
    project(root)
    values = [(SEED + i) % 1000 for i in range(FILES)]
    out = make(root, "-j2")
    same("compilations", out.count(" -c "), FILES + 1)
    same("clock skew", "skew" in out, False)
    same("what the program prints", command(os.path.join(root, "prog")), result(values))
    same("make -q after make", make(root, "-q"), "")

    time.sleep(0.02)  # more than a tick of the kernel's clock of files
    with open(os.path.join(root, "part3.c"), "w") as f:
        f.write(part(3, 77))
    values[3] = 77
    out = make(root)
    same("compilations after one change", out.count(" -c "), 1)
    same("what the program prints then", command(os.path.join(root, "prog")), result(values))
    time.sleep(0.02)
    os.utime(os.path.join(root, "parts.h"))
    same("compilations after touch parts.h", make(root).count(" -c "), FILES + 1)
    same("make -q at the end", make(root, "-q"), "")
    return tree(root)


def load(place):
    root = place.path("project")
    got = tree(root)
    if place.metadata:
        same("make -q", make(root, "-q"), "")
        values = [(SEED + i) % 1000 for i in range(FILES)]
        values[3] = 77
        same("what the program prints", command(os.path.join(root, "prog")), result(values))
    return got


if __name__ == "__main__":
    main(save, load)

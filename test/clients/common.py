"""What the client scripts share: their two modes, digests and the manifest.

A script is called as

    read_X.py generate DIR MANIFEST    makes data in DIR and writes what is in it to MANIFEST
    read_X.py check DIR MANIFEST       reads DIR with the client and compares with MANIFEST

The data depend on a fixed seed alone. The digests of the manifest are taken from what was
generated, in memory, before any client wrote it, so a check compares what the client was
given by the filesystem with what was meant to be there.
"""

import argparse
import hashlib
import json
import sys
import time

SEED = 20240229


def digest(*parts):
    """The SHA-256, in hex, of bytes-like parts or strings, with their lengths."""
    h = hashlib.sha256()
    for p in parts:
        if isinstance(p, str):
            p = p.encode()
        p = memoryview(p).cast("B")
        h.update(len(p).to_bytes(8, "little"))
        h.update(p)
    return h.hexdigest()


def compare(what, got, want):
    """Exits with a message unless the two dicts of name -> digest are equal."""
    missing = sorted(want.keys() - got.keys())
    extra = sorted(got.keys() - want.keys())
    wrong = sorted(k for k in got.keys() & want.keys() if got[k] != want[k])
    if not (missing or extra or wrong):
        return
    lines = [f"{what}: {len(got)} samples read, {len(want)} expected"]
    for name, keys in (("wrong bytes", wrong), ("missing", missing), ("not expected", extra)):
        if keys:
            lines.append(f"  {name}: {len(keys)}, such as {keys[:5]}")
    sys.exit("\n".join(lines))


def add(samples, key, value):
    """Adds a sample; one that comes twice is an error."""
    if key in samples:
        sys.exit(f"sample {key!r} came twice")
    samples[key] = value


def main(generate, check):
    """Runs a script. generate(dir) returns the manifest; check(dir, manifest) compares."""
    p = argparse.ArgumentParser()
    p.add_argument("mode", choices=["generate", "check"])
    p.add_argument("dir")
    p.add_argument("manifest")
    args = p.parse_args()
    start = time.monotonic()
    if args.mode == "generate":
        with open(args.manifest, "w") as f:
            json.dump(generate(args.dir), f)
    else:
        with open(args.manifest) as f:
            want = json.load(f)
        check(args.dir, want)
    print(f"{args.mode}: {time.monotonic() - start:.2f} s without imports")

#!/usr/bin/env bash
# Makes the Python environment of test/pyenv/requirements.txt if it is not there yet, and
# prints the path of its python as the only line of standard output.
#
# The environment lies outside the tree, in ${XDG_CACHE_HOME:-~/.cache}/leatfs/py/KEY, where
# KEY is a hash of the pins and of the Python version. A file .ready marks one that is
# complete; one without it is removed and made again. Environments with other keys, of
# earlier pins, are removed after a new one is ready. Parallel calls wait for each other.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
reqs=$here/requirements.txt
uv_version=0.13.8
base=${XDG_CACHE_HOME:-$HOME/.cache}/leatfs/py

say() { echo "pyenv: $*" >&2; }

# find_python prints the first interpreter of a version that the pins have wheels for, the
# one they were tested with first.
find_python() {
  local p
  for p in "${LEATFS_PYTHON:-}" python3.11 /usr/bin/python3.11 python3.12 python3.13 python3 /usr/bin/python3; do
    [ -n "$p" ] || continue
    if "$p" -c 'import sys, venv, ensurepip; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null; then
      "$p" -c 'import sys; print(sys.executable)'
      return
    fi
  done
  return 1
}

if ! python=$(find_python); then
  say "needs Python 3.11, 3.12 or 3.13 with the venv module: run \"make deps\" as root, or name one in LEATFS_PYTHON"
  exit 1
fi
key=$({ "$python" -c 'import sys; print(sys.executable, sys.version)'; echo "$uv_version"; cat "$reqs"; } | sha256sum | cut -c1-16)
env=$base/$key

mkdir -p "$base"
exec 9>"$base/lock"
flock 9

if [ ! -e "$env/.ready" ]; then
  say "installing $(grep -c == "$reqs") packages into $env (about 2.5 GB to download, 6 GB on disk)"
  start=$SECONDS
  rm -rf "$env"
  "$python" -m venv "$env"
  "$env/bin/python" -m pip install --quiet --disable-pip-version-check "uv==$uv_version" >&2
  # A registry may fail for a moment; what was downloaded is kept.
  for try in 1 2 3; do
    if UV_HTTP_TIMEOUT=180 "$env/bin/uv" pip install --quiet --no-deps --python "$env/bin/python" -r "$reqs" >&2; then
      break
    elif [ "$try" = 3 ]; then
      say "the packages could not be installed"
      exit 1
    fi
    say "trying again"
    sleep $((5 * try))
  done
  touch "$env/.ready"
  say "ready after $((SECONDS - start)) s"
  for old in "$base"/*/; do
    [ "$old" = "$env/" ] || rm -rf "$old"
  done
fi
echo "$env/bin/python"

#!/usr/bin/env bash
# Installs layers of packages on top of the environment of pyenv.sh, and prints the directory
# of each, one a line: they go into PYTHONPATH, in this order.
#
#   layers.sh NAME...    the layers layers/NAME.txt
#
# A layer lies in the environment, in layers/NAME-KEY, where KEY is a hash of its pins, and is
# removed with it. Clients that need other versions of the same package have layers of their
# own: a layer comes before the environment. A file .ready marks one that is complete; others
# of the same name are removed then. Parallel calls wait for each other.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
say() { echo "layers: $*" >&2; }

python=$("$here/pyenv.sh")
env=$(dirname "$(dirname "$python")")
mkdir -p "$env/layers"
exec 9>"$env/layers/lock"
flock 9

# install DIR FILE installs the pins of FILE into DIR. A registry may fail for a moment.
install() {
  local try
  for try in 1 2 3; do
    if UV_HTTP_TIMEOUT=180 nice -n 19 "$env/bin/uv" pip install --quiet --no-deps \
      --python "$python" --target "$1" -r "$2" >&2; then
      return
    fi
    say "trying again"
    sleep $((5 * try))
  done
  return 1
}

for name in "$@"; do
  reqs=$here/layers/$name.txt
  if [ ! -f "$reqs" ]; then
    say "there is no layer $name: no $reqs"
    exit 1
  fi
  dir=$env/layers/$name-$(sha256sum <"$reqs" | cut -c1-12)
  if [ ! -e "$dir/.ready" ]; then
    say "installing $name ($(grep -c == "$reqs") packages)"
    rm -rf "$dir"
    if ! install "$dir" "$reqs"; then
      say "the packages of $reqs could not be installed"
      exit 1
    fi
    touch "$dir/.ready"
    for old in "$env/layers/$name"-*/; do
      [ "$old" = "$dir/" ] || rm -rf "$old"
    done
  fi
  echo "$dir"
done

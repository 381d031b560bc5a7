#!/usr/bin/env bash
# Looks for the system's programs that building and testing need. What is missing is
# installed if this runs as root where there is apt; otherwise it says what to install.
set -euo pipefail

packages=()
missing=()

# need WHAT PACKAGE COMMAND...: COMMAND succeeds where WHAT is there.
need() {
  local what=$1 package=$2
  shift 2
  if ! "$@" >/dev/null 2>&1; then
    missing+=("$what")
    packages+=("$package")
  fi
}

python_with_venv() {
  local p
  for p in python3.11 python3.12 python3.13 python3 /usr/bin/python3; do
    if "$p" -c 'import sys, venv, ensurepip; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))'; then
      return
    fi
  done
  return 1
}

check() {
  packages=()
  missing=()
  need "git" git command -v git
  need "a C compiler, for the race detector" gcc command -v gcc
  need "the C library's headers" libc6-dev sh -c 'echo "#include <stdlib.h>" | gcc -E -'
  need "fusermount3" fuse3 command -v fusermount3
  need "mkfs.ext4" e2fsprogs sh -c 'PATH=$PATH:/usr/sbin:/sbin command -v mkfs.ext4'
  need "mkfs.xfs" xfsprogs sh -c 'PATH=$PATH:/usr/sbin:/sbin command -v mkfs.xfs'
  need "Python 3.11 to 3.13 with venv" python3-venv python_with_venv
  need "make" make command -v make
  need "rsync" rsync command -v rsync
  need "certificates" ca-certificates test -s /etc/ssl/certs/ca-certificates.crt -o -d /etc/pki/tls/certs
}

if ! command -v go >/dev/null; then
  echo "deps: Go is missing: install Go 1.26 or later (go.dev/dl)" >&2
  exit 1
fi

check
if [ ${#missing[@]} = 0 ]; then
  exit 0
fi
list=$(printf '%s; ' "${missing[@]}")
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
  echo "deps: missing: ${list%; }: installing ${packages[*]}" >&2
  export DEBIAN_FRONTEND=noninteractive
  log=$(mktemp)
  if ! { apt-get update && apt-get install -y --no-install-recommends "${packages[@]}"; } >"$log" 2>&1; then
    tail -n 20 "$log" >&2
  fi
  rm -f "$log"
  check
  if [ ${#missing[@]} = 0 ]; then
    exit 0
  fi
  list=$(printf '%s; ' "${missing[@]}")
fi
echo "deps: missing: ${list%; }. As root on Debian or Ubuntu: apt-get install ${packages[*]}" >&2
exit 1

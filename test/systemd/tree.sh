#!/usr/bin/env bash
# Makes, once, a directory tree with Debian and systemd, for machines of the tests to boot
# from, and prints its path. It lies outside of this tree, in leatfs/systemd-HASH of the
# user's cache directory, named by this recipe: a change of it makes a new one. Needs root.
#
# LEATFS_DEBIAN_MIRROR  where Debian's packages are (default: where apt gets them, or Debian's)
set -euo pipefail
export PATH=$PATH:/usr/sbin:/sbin

suite=bookworm # systemd 252, mount 2.38
packages=systemd,systemd-sysv,dbus,fuse3,procps,mount,util-linux

say() { echo "systemd tree: $*" >&2; }

# quiet COMMAND...: shows what it said only when it fails.
quiet() {
  local log
  log=$(mktemp)
  if ! "$@" >"$log" 2>&1; then
    tail -n 20 "$log" >&2
    rm -f "$log"
    return 1
  fi
  rm -f "$log"
}

have_debootstrap() {
  command -v debootstrap >/dev/null && [ -s /usr/share/keyrings/debian-archive-keyring.gpg ]
}

need_debootstrap() {
  if have_debootstrap; then
    return
  fi
  if command -v apt-get >/dev/null; then
    say "missing: debootstrap: installing debootstrap debian-archive-keyring"
    export DEBIAN_FRONTEND=noninteractive
    quiet apt-get update || true
    quiet apt-get install -y --no-install-recommends debootstrap debian-archive-keyring || true
  fi
  if ! have_debootstrap; then
    say "missing: debootstrap. As root on Debian or Ubuntu: apt-get install debootstrap debian-archive-keyring"
    exit 1
  fi
}

# mirrors prints the places where apt gets Debian's main archive.
mirrors() {
  apt-get indextargets --format '$(ORIGIN) $(LABEL) $(REPO_URI)' 'Created-By: Packages' 2>/dev/null |
    awk '$1 == "Debian" && $2 == "Debian" && $3 ~ /^http/ { print $3 }' | sort -u
}

mirror() {
  local m=${LEATFS_DEBIAN_MIRROR:-}
  if [ -z "$m" ] && command -v apt-get >/dev/null; then
    m=$(mirrors | head -n 1)
    if [ -z "$m" ]; then # apt has no lists yet
      quiet apt-get update || true
      m=$(mirrors | head -n 1)
    fi
  fi
  echo "${m:-http://deb.debian.org/debian}"
}

if [ "$(id -u)" != 0 ]; then
  say "run this as root: a tree holds files of several owners"
  exit 1
fi
base=${XDG_CACHE_HOME:-$HOME/.cache}/leatfs
hash=$(sha256sum "${BASH_SOURCE[0]}" | cut -c 1-12)
tree=$base/systemd-$hash
mkdir -p "$base"
exec 9>"$base/.systemd.lock" # two runs at once make one tree
flock 9
if [ ! -e "$tree/.complete" ]; then
  need_debootstrap
  say "making $tree (Debian $suite; about a minute)"
  rm -rf "$base"/systemd-*
  if ! quiet debootstrap --variant=minbase --include="$packages" "$suite" "$tree" "$(mirror)"; then
    rm -rf "$tree"
    exit 1
  fi
  rm -rf "$tree"/var/cache/apt/* "$tree"/var/lib/apt/lists/* "$tree"/usr/share/{doc,man,locale}/*
  rm -f "$tree/etc/machine-id" # each machine gets its own
  touch "$tree/.complete"
fi
echo "$tree"

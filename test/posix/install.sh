#!/usr/bin/env bash
# install.sh CRATE VERSION DIR: builds a program of the POSIX tests from crates.io into DIR, and
# leaves DIR/.CRATE-VERSION as a sign. Where there is no cargo, or one too old, it says so and
# succeeds: leatfs itself needs no Rust.
set -euo pipefail

crate=$1 version=$2 dir=$3
need=1.85 # of pjdfstest 0.2.2

have=$(cargo --version 2>/dev/null | sed -nE 's/^cargo ([0-9]+\.[0-9]+).*/\1/p' || true)
if [ -z "$have" ] || [ "$(printf '%s\n' "$need" "$have" | sort -V | head -n 1)" != "$need" ]; then
  echo "tools: $crate $version is not built: it needs cargo of Rust $need or later (rustup.rs); here is ${have:-none}" >&2
  exit 0
fi

echo "tools: building $crate $version"
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
log=$tmp/log
# With line numbers, so that a failure says where in the suite it was.
if ! CARGO_TARGET_DIR=$tmp/target CARGO_PROFILE_RELEASE_DEBUG=line-tables-only \
  cargo install --locked --version "$version" --root "$tmp" "$crate" >"$log" 2>&1; then
  tail -n 30 "$log" >&2
  echo "tools: cargo install $crate $version failed" >&2
  exit 1
fi
mkdir -p "$dir"
mv "$tmp/bin/$crate" "$dir/$crate"
rm -f "$dir/.$crate-"*
touch "$dir/.$crate-$version"

#!/usr/bin/env bash
# A short tour: a volume is made, mounted and worked on, unmounted and checked, all by ubtrfs.
set -euo pipefail
cd "$(dirname "$0")/.."

say() { printf '\n\033[1m%s\033[0m\n' "$*"; }
show() {
    printf '  $ %s\n' "$*"
    "$@" 2>&1 | sed 's/^/    /'
}
stop() {
    printf '\nThe demo stops here: %s\n' "$*" >&2
    exit 1
}

# The oldest Rust that builds the program, as Cargo.toml says.
needed=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)
how="ubtrfs needs Rust $needed or newer; get it from https://rustup.rs: curl https://sh.rustup.rs -sSf | sh"
command -v cargo >/dev/null 2>&1 || stop "cargo is missing. $how"
rust=$(rustc --version 2>/dev/null | cut -d ' ' -f 2)
[ -n "$rust" ] || stop "cargo is there, but rustc does not run. $how"
oldest=$(printf '%s\n' "$needed" "${rust%%-*}" | sort -V | head -n 1)
[ "$oldest" = "$needed" ] || stop "rustc is too old: $rust. $how"
tests/install-packages.sh fusermount3=fuse3 git=git setfattr=attr cc=gcc ld=libc6-dev
for program in git setfattr getfattr cc; do
    command -v "$program" >/dev/null 2>&1 || stop "$program is missing"
done
if [ "$(id -u)" -ne 0 ]; then
    command -v fusermount3 >/dev/null 2>&1 || stop 'fusermount3 is missing (package fuse3), which users other than root need to mount'
fi
[ -e /dev/fuse ] || stop 'there is no /dev/fuse; the kernel module is called fuse, and a container needs --device /dev/fuse'
{ : <>/dev/fuse; } 2>/dev/null || stop '/dev/fuse cannot be opened for reading and writing'

say 'Building ubtrfs'
cargo build --release -p ubtrfs-cli
ubtrfs=${CARGO_TARGET_DIR:-$PWD/target}/release/ubtrfs

place=$(mktemp -d "${TMPDIR:-/tmp}/ubtrfs-demo.XXXXXX")
image=$place/demo.img
dir=$place/mnt
mkdir "$dir"
clean_up() {
    cd /
    mountpoint -q "$dir" && { "$ubtrfs" umount "$dir" || umount -l "$dir"; }
    rm -rf "$place"
}
trap clean_up EXIT

say 'A new volume in a file'
show "$ubtrfs" mkfs --size 1G --label demo "$image"
show "$ubtrfs" info "$image"

say 'Mounted through FUSE'
show "$ubtrfs" mount "$image" "$dir"
show df -h "$dir"

say 'Files, links, extended attributes, holes'
cd "$dir"
mkdir -p books/poetry
echo 'A rose is a rose is a rose.' >books/poetry/rose
ln books/poetry/rose hard-link
ln -s books/poetry/rose soft-link
setfattr -n user.author -v 'G. S.' books/poetry/rose
truncate -s 8T sparse && echo 'the end' >>sparse
mv books/poetry library
show ls -lai
show getfattr -d library/rose
show tail -c 8 sparse
show du -h sparse

say 'A git repository'
export GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_SYSTEM=/dev/null
mkdir repository
cd repository
git init -q -b main
git config user.name Demo
git config user.email demo@example.org
for chapter in 1 2 3; do
    for page in $(seq 100); do
        echo "page $page of chapter $chapter" >"chapter-$chapter-page-$page"
    done
    git add .
    git commit -q -m "chapter $chapter"
done
show git log --oneline
git gc -q
show git fsck --full
cd /

say 'Unmounted, which commits everything, and checked'
show "$ubtrfs" umount "$dir"
show "$ubtrfs" check "$image"
say 'Read without a mount'
show "$ubtrfs" ls "$image" /
show "$ubtrfs" cat "$image" /library/rose

say 'How to go on'
cat <<END
  $ubtrfs mkfs --size 8G my.img    makes a volume
  $ubtrfs mount my.img DIR         mounts it (or a real btrfs device)
  $ubtrfs umount DIR               unmounts it; the last commit is durable then
  $ubtrfs --help                   tells everything else
The kernel mounts the same volumes: mount -o loop my.img DIR. README.md tells more.
END

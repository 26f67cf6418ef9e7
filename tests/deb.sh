#!/usr/bin/env bash
# The Debian package: `deb.sh build` builds it, with cargo-deb, and checks it. `deb.sh check FILE`
# only checks it: it is unpacked into an empty directory, and what is in it is used from there.
# `deb.sh stage BINARY DIR` only puts together what comes into it.
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH="$PATH:/usr/sbin:/sbin"
cargo_deb=3.7.0

say() { printf '\n== %s\n' "$*"; }
fail() {
    echo "deb.sh: $*" >&2
    exit 1
}
has() { command -v "$1" >/dev/null 2>&1; }

build() {
    tests/install-packages.sh cc=gcc ld=libc6-dev dpkg-deb=dpkg dpkg-shlibdeps=dpkg-dev man=man-db fusermount3=fuse3
    target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
    tools=$target/tools
    if [ "$("$tools/bin/cargo-deb" --version 2>/dev/null)" != "cargo-deb $cargo_deb" ]; then
        say "cargo-deb $cargo_deb, for this project alone"
        cargo install cargo-deb --locked --version "$cargo_deb" --root "$tools" --target-dir "$tools/target"
    fi
    say 'build'
    cargo build --release --locked -p ubtrfs-cli
    rm -rf "$target/release/package" "$target"/debian/ubtrfs_*.deb
    stage "$target/release/ubtrfs" "$target/release/package"
    "$tools/bin/cargo-deb" --no-build --locked -p ubtrfs-cli --output "$target/debian/"
    package=$(echo "$target"/debian/ubtrfs_*.deb)
    say "check $package"
    check "$package"
    say 'done'
    echo "apt install $package"
}

# The package gets its files from here, as crates/cli/Cargo.toml lists them.
stage() {
    make --silent install BIN="$1" DESTDIR="$2" PREFIX=/usr SBINDIR=/usr/sbin
    # cargo-deb packs pages of the manual, but none from the directory of what was built.
    gzip -9n "$2"/usr/share/man/man*/*
}

check() {
    package=$(realpath "$1")
    place=$(mktemp -d "${TMPDIR:-/tmp}/ubtrfs-deb.XXXXXX")
    trap clean_up EXIT
    root=$place/root
    bin=$root/usr/bin/ubtrfs
    share=$root/usr/share
    dpkg-deb -x "$package" "$root"

    version=$(sed -n '/^\[workspace.package\]/,/^\[/ s/^version = "\(.*\)"/\1/p' Cargo.toml)
    [ "$("$bin" --version)" = "ubtrfs $version" ] || fail 'the binary has another version than the sources'
    case $(dpkg-deb -f "$package" Version) in "$version" | "$version"-*) ;; *) fail 'the package has another version than the sources' ;; esac
    dpkg-deb -f "$package" Depends | grep -qw fuse3 || fail 'the package does not depend on fuse3'
    wrong=$(dpkg-deb -c "$package" | awk '$2 != "root/root" && $2 != "0/0"')
    [ -z "$wrong" ] || fail "not root's: $wrong"
    grep -q '^License: MIT' "$share/doc/ubtrfs/copyright" || fail 'no licence'

    use_volume
    look_at_pages
    look_at_completions
    look_at_settings
    [ "$(id -u)" -ne 0 ] || install_and_remove
}

# By the names that mkfs(8), mount(8) and fsck(8) call.
use_volume() {
    local name image=$place/image dir=$place/mnt
    for name in mkfs fsck mount mount.fuse mount.fuseblk; do
        [ -x "$root/usr/sbin/$name.ubtrfs" ] || fail "$name.ubtrfs leads nowhere"
    done
    "$root/usr/sbin/mkfs.ubtrfs" --size 128M "$image" >/dev/null
    "$root/usr/sbin/fsck.ubtrfs" -a "$image" >/dev/null
    if { : <>/dev/fuse; } 2>/dev/null && { [ "$(id -u)" -eq 0 ] || has fusermount3; }; then
        mkdir "$dir"
        "$root/usr/sbin/mount.ubtrfs" "$image" "$dir" -o rw
        echo words >"$dir/file"
        "$bin" umount "$dir"
        [ "$("$bin" cat "$image" /file)" = words ] || fail 'what was written through the mount is not there'
    else
        echo 'not tried, for FUSE or fusermount3 is missing: a mount'
    fi
    "$bin" check "$image" >/dev/null
}

look_at_pages() {
    local page
    for page in "$share"/man/man*/*; do
        gzip -t "$page"
    done
    if ! has man; then
        echo 'not looked at, for there is no man(1): manual pages'
        return
    fi
    for page in ubtrfs.5 ubtrfs-devices.7 ubtrfs.8 ubtrfs-mount.8 ubtrfs-check.8 mount.ubtrfs.8; do
        [ "$(man -M "$share/man" -w "${page##*.}" "${page%.*}")" = "$share/man/man${page##*.}/$page.gz" ] || fail "man(1) does not find $page"
    done
}

look_at_completions() {
    bash -n "$share/bash-completion/completions/ubtrfs"
    (
        # shellcheck source=/dev/null
        . "$share/bash-completion/completions/ubtrfs"
        complete -p ubtrfs >/dev/null
    ) || fail 'bash has no completion for ubtrfs'
    grep -q '^#compdef ubtrfs' "$share/zsh/vendor-completions/_ubtrfs" || fail 'no completion for zsh'
    ! has zsh || zsh -n "$share/zsh/vendor-completions/_ubtrfs"
    grep -q '^complete -c ubtrfs' "$share/fish/vendor_completions.d/ubtrfs.fish" || fail 'no completion for fish'
    ! has fish || fish -n "$share/fish/vendor_completions.d/ubtrfs.fish"
}

look_at_settings() {
    local unit=$root/usr/lib/systemd/system/ubtrfs@.service
    # Whatever is no comment is a line of modprobe.d(5).
    ! grep -vE '^(#.*|options [a-z_]+( [a-z_]+=[^ ]+)+)$' "$root/usr/lib/modprobe.d/ubtrfs.conf" || fail 'no line of modprobe.d(5)'
    grep -q '^ExecStart=/usr/bin/ubtrfs mount -f ' "$unit" || fail 'the unit does not call /usr/bin/ubtrfs'
    local scrub=$root/usr/lib/systemd/system/ubtrfs-scrub@
    grep -q '^ExecStart=/usr/bin/ubtrfs scrub start ' "${scrub}.service" || fail 'the unit for scrubs does not call /usr/bin/ubtrfs'
    if has systemd-analyze; then
        # With the program where it is now.
        sed "s|=/usr/bin/|=$root/usr/bin/|" "$unit" >"$place/ubtrfs@mnt-disk.service"
        sed "s|=/usr/bin/|=$root/usr/bin/|" "${scrub}.service" >"$place/ubtrfs-scrub@mnt-disk.service"
        cp "${scrub}.timer" "$place/ubtrfs-scrub@mnt-disk.timer"
        local name
        for name in ubtrfs@mnt-disk.service ubtrfs-scrub@mnt-disk.service ubtrfs-scrub@mnt-disk.timer; do
            # What systemd passes over is a word to the standard error stream and no failure. Other
            # units of the machine may have such words, too.
            systemd-analyze verify --man=no "$place/$name" 2>"$place/log" || fail "$(cat "$place/log")"
            ! grep -E 'ubtrfs(-scrub)?@' "$place/log" || fail "systemd does not take $name as it is"
        done
    fi
}

# As dpkg(1) does it, without the packages that it depends on.
install_and_remove() {
    local other=$place/other
    mkdir -p "$other/var/lib/dpkg/info" "$other/var/lib/dpkg/updates"
    touch "$other/var/lib/dpkg/status"
    dpkg --root="$other" --log=/dev/null --path-include='*' --force-depends -i "$package" >"$place/log" 2>&1 || fail "$(cat "$place/log")"
    diff -r --no-dereference "$root/usr" "$other/usr" || fail 'dpkg(1) has installed something else'
    dpkg --root="$other" --log=/dev/null -r ubtrfs >"$place/log" 2>&1 || fail "$(cat "$place/log")"
    [ -z "$(find "$other/usr" ! -type d 2>/dev/null)" ] || fail "left behind: $(find "$other/usr" ! -type d)"
}

clean_up() {
    if mountpoint -q "$place/mnt"; then
        "$bin" umount "$place/mnt" || umount -l "$place/mnt"
    fi
    rm -rf "$place"
}

case "${1:-}" in
build) build ;;
check) check "${2:?the package}" ;;
stage) stage "${2:?the binary}" "${3:?the directory}" ;;
*)
    echo 'deb.sh build | check FILE | stage BINARY DIR' >&2
    exit 2
    ;;
esac

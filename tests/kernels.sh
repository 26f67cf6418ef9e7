#!/usr/bin/env bash
# Boots Debian's kernels in qemu, emulated in software, and has each do what tests/kernels/guest.sh
# says, with ubtrfs over /dev/fuse and with the btrfs of that kernel; at last the kernel of this
# machine, without qemu. With --write the result goes into docs/kernels.md with date and versions.
# Kernels are downloaded, not installed; those that apt does not know come from the backports of the
# next Debian.
#
# usage: kernels.sh [--write] [SERIES...]
#        (as root; by default 6.1, 6.12, 6.17 and "host"; UBTRFS_BIN names the program, and ONLY has
#        commands of guest.sh to run instead of all checks)
set -euo pipefail
cd "$(dirname "$0")/.."
ubtrfs=$(realpath "${UBTRFS_BIN:-target/proof/ubtrfs}")
write=false
[ "${1:-}" != --write ] || { write=true; shift; }
[ $# -gt 0 ] || set -- 6.1 6.12 6.17 host
tests/install-packages.sh qemu-system-x86_64=qemu-system-x86 cpio=cpio xz=xz-utils xfs_io=xfsprogs mkfs.btrfs=btrfs-progs fusermount3=fuse3 \
    setfattr=attr losetup=mount setpriv=util-linux pgrep=procps busybox=busybox-static depmod=kmod
export PATH="$PATH:/usr/sbin:/sbin"
cache=${CARGO_TARGET_DIR:-$PWD/target}/kernels
mkdir -p "$cache"
dir=$(mktemp -d /tmp/ubtrfs-kernels-XXXXXX)
chmod 711 "$dir"
qemu=
finish() {
    [ -z "$qemu" ] || kill "$qemu" 2>/dev/null || true
    umount -l "$dir/host/mnt" "$dir/host/knl" "$dir/host" 2>/dev/null || true
    rm -rf "$dir"
}
trap finish EXIT
say() { printf '== %s\n' "$*"; }
stop() {
    printf 'kernels.sh: %s\n' "$*" >&2
    exit 1
}

# The name of the newest kernel of a series that apt knows, with these options.
newest() {
    local series=$1
    shift
    apt-cache "$@" pkgnames linux-image- | grep -E "^linux-image-${series//./\\.}[.-].*-cloud-amd64(-unsigned)?$" | sort -V | tail -n 1
}

# The options by which apt knows the backports of the next Debian, and nothing of its state changes,
# are then in ${backports[@]}.
know_backports() {
    local place=$cache/apt
    backports=(-o "Dir::Etc::SourceList=$place/sources.list" -o Dir::Etc::SourceParts=/dev/null -o "Dir::State::lists=$place/lists"
        -o "Dir::Cache=$place/cache" -o APT::Sandbox::User=root)
    [ ! -e "$place/sources.list" ] || return 0
    local mirror
    # Of its own mirrors, that of the main archive.
    mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Origin: Debian' | grep -m 1 '/debian/$') || return 1
    mkdir -p "$place/lists/partial" "$place/cache/archives/partial"
    printf 'deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] %s trixie-backports main\n' "$mirror" >"$place/new"
    apt-get "${backports[@]}" -o "Dir::Etc::SourceList=$place/new" update >/dev/null && mv "$place/new" "$place/sources.list"
}

# The newest kernel of a series, unpacked; its place is then in $kernel.
fetch() {
    local package backports=()
    package=$(newest "$1" || true)
    if [ -z "$package" ]; then
        know_backports || stop "the backports of the next Debian can't be had"
        package=$(newest "$1" "${backports[@]}" || true)
    fi
    [ -n "$package" ] || stop "apt knows no kernel of the series $1 (apt-get update?)"
    kernel=$cache/$package
    if [ ! -e "$kernel/boot" ]; then
        say "downloading $package"
        rm -rf "$kernel" "$kernel.new"
        mkdir -p "$kernel.new/deb"
        (cd "$kernel.new/deb" && apt-get "${backports[@]}" download "$package" >/dev/null 2>&1) || stop "$package can't be downloaded"
        dpkg-deb -x "$kernel.new"/deb/*.deb "$kernel.new"
        rm -r "$kernel.new/deb"
        # Newer ones have merged directories.
        [ -e "$kernel.new/lib" ] || ln -s usr/lib "$kernel.new/lib"
        mv "$kernel.new" "$kernel"
    fi
}

# Puts a program into the initramfs by this name, with the libraries that it is linked with.
install_program() {
    local root=$1 path=$2 library
    install -D "$(realpath "$path")" "$root/bin/$3"
    while read -r library; do
        [ -e "$root$library" ] || install -D "$(realpath "$library")" "$root$library"
    done < <(ldd "$path" 2>/dev/null | grep -oE '/[^ ]+' || true)
}

# The initramfs of all kernels, but for their modules.
make_base() {
    local root=$dir/base
    mkdir -p "$root"/{bin,sbin,usr,proc,sys,dev,tmp,etc,run,lib}
    ln -s ../bin "$root/usr/bin"
    ln -s ../bin "$root/usr/sbin"
    rmdir "$root/sbin"
    ln -s bin "$root/sbin"
    local program path
    for program in awk bash btrfs busybox cat chmod chown cmp cp cut date dd df diff env fallocate find findmnt flock \
        fusermount3 getfattr grep head id ln losetup ls mkdir mkfifo mkfs.btrfs mknod modprobe mount mv od pgrep readlink rm rmdir sed seq setfattr setpriv \
        sha256sum sleep sort stat sync tail test timeout touch tr true truncate umount uname wc xargs xfs_io yes; do
        path=$(type -P "$program") || stop "$program is missing"
        install_program "$root" "$path" "$program"
    done
    install_program "$root" "$ubtrfs" ubtrfs
    strip "$root/bin/ubtrfs"
    chmod u+s "$root/bin/fusermount3"
    install -m 755 tests/kernels/guest.sh tests/kernels/init "$root/bin/"
    ln -s bin/init "$root/init"
    printf 'root:x:0:0::/:/bin/bash\nuser:x:1000:1000::/:/bin/bash\n' >"$root/etc/passwd"
    printf 'root:x:0:\nuser:x:1000:\n' >"$root/etc/group"
    : >"$root/etc/fstab"
    ln -s /proc/self/mounts "$root/etc/mtab"
}

# make_initramfs KERNEL FILE
make_initramfs() {
    local root=$dir/root modules release
    rm -rf "$root"
    cp -a "$dir/base" "$root"
    release=$(ls "$1/lib/modules")
    modules=lib/modules/$release
    mkdir -p "$root/$modules"
    # These and what they need. Modules of checksums have names of their own in each series.
    depmod -b "$1" "$release"
    local name file
    for name in btrfs fuse loop crc32c_generic crc32c-intel crypto-crc32c crypto-xxhash64 crypto-blake2b-256; do
        { modprobe -d "$1" -S "$release" --show-depends "$name" 2>/dev/null || true; } | sed -n 's/^insmod //p'
    done | sort -u | while read -r file; do
        install -D "$file" "$root/$modules/${file#*"$modules/"}"
    done
    cp "$1/$modules"/modules.{order,builtin,builtin.modinfo} "$root/$modules/"
    depmod -b "$root" "$release"
    (cd "$root" && find . | cpio -o -H newc 2>/dev/null) >"$2"
}

# Boots a kernel; what it says is in the file.
boot() {
    local limit=${KERNELS_MINUTES:-40}
    qemu-system-x86_64 -accel tcg,thread=multi -cpu max -smp 2 -m 3072 -nodefaults -no-user-config -display none -serial stdio \
        -no-reboot -kernel "$1"/boot/vmlinuz-* -initrd "$2" -append "console=ttyS0 quiet panic=-1 only=${ONLY:+$(printf %s "$ONLY" | base64 -w 0)}" \
        </dev/null >"$3" 2>&1 &
    qemu=$!
    local waited=0
    while kill -0 "$qemu" 2>/dev/null && [ "$waited" -lt $((limit * 60)) ]; do
        sleep 1
        waited=$((waited + 1))
    done
    kill "$qemu" 2>/dev/null && echo "stopped after $limit minutes" >>"$3"
    wait "$qemu" || true
    qemu=
}

status=0
results=()
for series in "$@"; do
    out=$dir/$series.out
    if [ "$series" = host ]; then
        say "the kernel of this machine, $(uname -r)"
        mkdir -p "$dir/host"
        mount -t tmpfs -o size=3g tmpfs "$dir/host"
        tests/kernels/guest.sh "$ubtrfs" "$dir/host" </dev/null >"$out" 2>&1 || true
        umount "$dir/host"
    else
        [ -e "$dir/base" ] || make_base
        fetch "$series"
        say "$(basename "$kernel")"
        make_initramfs "$kernel" "$dir/initramfs"
        boot "$kernel" "$dir/initramfs" "$out"
    fi
    tr -d '\r' <"$out" | grep -E '^(kernel |says: |check |checks:|stopped)' || true
    if ! tr -d '\r' <"$out" | grep -q '^checks: 0 failed$'; then
        status=1
        say "what it said"
        tail -n 30 "$out"
    fi
    results+=("$out")
done

# What docs/kernels.md is, of the results: a row for each check, a column for each kernel.
table() {
    awk '
        { sub(/\r$/, "") }
        FNR == 1 { kernels++ }
        /^kernel / { release[kernels] = $2 }
        /^check / {
            name = $0
            sub(/^check /, "", name)
            result = name
            sub(/: (ok|FAILED.*)$/, "", name)
            sub(/^.*: (ok$|FAILED)/, "&", result)
            if (!(name in seen)) { seen[name] = 1; names[++count] = name }
            found[name, kernels] = (result ~ /: ok$/) ? "ok" : "**fails**"
        }
        END {
            line = "| check |"; rule = "|---|"
            for (k = 1; k <= kernels; k++) { line = line " " release[k] " |"; rule = rule "---|" }
            print line; print rule
            for (n = 1; n <= count; n++) {
                line = "| " names[n] " |"
                for (k = 1; k <= kernels; k++) line = line " " ((names[n], k) in found ? found[names[n], k] : "not run") " |"
                print line
            }
        }' "${results[@]}"
}
if "$write" && [ -z "${ONLY:-}" ]; then
    {
        sed '/^## Results/,$d' docs/kernels.md
        printf '## Results\n\n%s, ubtrfs %s, btrfs-progs %s, qemu %s:\n\n' "$(date -u +%Y-%m-%d)" "$("$ubtrfs" --version | awk '{ print $2 }')" \
            "$(mkfs.btrfs --version | awk '{ print $NF }' | tr -d v)" "$(qemu-system-x86_64 --version | awk 'NR == 1 { print $4 }')"
        table
    } >"$dir/kernels.md"
    cp "$dir/kernels.md" docs/kernels.md
fi
exit "$status"

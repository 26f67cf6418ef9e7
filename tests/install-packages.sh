#!/usr/bin/env bash
# Installs the Debian packages that tests and demo need and that are missing, or says which are. Always ends well: what is
# still missing then, the tests that need it say themselves.
#
# usage: install-packages.sh PROGRAM=PACKAGE... (or, of a library, PATH-OF-A-FILE=PACKAGE)
set -u

missing=()
for pair in "$@"; do
    PATH="$PATH:/usr/sbin:/sbin" command -v "${pair%%=*}" >/dev/null 2>&1 || [ -f "${pair%%=*}" ] || missing+=("${pair#*=}")
done
[ ${#missing[@]} -gt 0 ] || exit 0
mapfile -t missing < <(printf '%s\n' "${missing[@]}" | sort -u)

as_root=()
if [ "$(id -u)" -ne 0 ]; then
    as_root=(sudo -n)
fi
if ! command -v apt-get >/dev/null 2>&1; then
    echo "missing: the packages ${missing[*]} (this machine has no apt-get to install them)"
elif [ "$(id -u)" -ne 0 ] && ! sudo -n true 2>/dev/null; then
    echo "missing: the packages ${missing[*]} (install them as root: apt-get install ${missing[*]})"
else
    echo "installing: ${missing[*]}"
    log=$(mktemp)
    if ! { "${as_root[@]}" apt-get update &&
        "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "${missing[@]}"; } >"$log" 2>&1; then
        echo "missing: apt-get could not install ${missing[*]}:"
        tail -n 5 "$log"
    fi
    rm -f "$log"
fi
exit 0

# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
#
# Sourced by scripts that build. `ensure_build_tools' installs what the build and the testbed need and this machine lacks,
# from the machine's own apt sources. Refuses: to install a Rust toolchain, and to touch what is there already.

# "FILE-OR-COMMAND PACKAGE": a path is looked for as such, anything else on PATH.
BUILD_TOOLS=(
    "gcc gcc"
    "/usr/include/stdio.h libc6-dev"
    "pkg-config pkg-config"
    # the BPF programs
    "clang clang"
    "llvm-strip llvm"
    "/usr/include/bpf/bpf_helpers.h libbpf-dev"
    "/usr/include/linux/bpf.h linux-libc-dev"
    # the built-in OCI runtime: headers, and the archive
    "/usr/include/seccomp.h libseccomp-dev"
    # the testbed
    "debootstrap debootstrap"
    "losetup mount"
    "unshare util-linux"
    # the checks
    "shellcheck shellcheck"
    # the tests of captures: disks of every kind
    "mkfs.xfs xfsprogs"
    "mkfs.btrfs btrfs-progs"
    "setfattr attr"
)

deps_die() {
    echo "${0##*/}: $*" >&2
    exit 1
}

# The packages of what is missing.
deps_missing() {
    local entry what package
    for entry in "${BUILD_TOOLS[@]}"; do
        read -r what package <<<"$entry"
        case $what in
            /*) [ -e "$what" ] || echo "$package" ;;
            *) PATH=$PATH:/usr/sbin:/sbin command -v "$what" >/dev/null || echo "$package" ;;
        esac
    done
}

# That cargo is there, and nothing more.
ensure_cargo() {
    [ -n "${CARGO_HOME:-}" ] || [ ! -d "${HOME:-/root}/.cargo/bin" ] || PATH=$PATH:${HOME:-/root}/.cargo/bin
    command -v cargo >/dev/null ||
        deps_die "there is no cargo: install Rust (the version that Cargo.toml names, or newer) with rustup, see https://rustup.rs"
}

ensure_build_tools() {
    local packages log
    ensure_cargo
    mapfile -t packages < <(deps_missing)
    [ ${#packages[@]} -gt 0 ] || return 0
    command -v apt-get >/dev/null ||
        deps_die "missing on this machine: ${packages[*]} (names of Debian's packages), and there is no apt-get to install them"
    [ "$(id -u)" = 0 ] || deps_die "missing on this machine: ${packages[*]}; as root, run: apt-get install ${packages[*]}"
    echo "${0##*/}: installing ${packages[*]}" >&2
    log=$(mktemp)
    if ! { apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -qy --no-install-recommends "${packages[@]}"; } \
        >"$log" 2>&1 </dev/null; then
        tail -n 5 "$log" >&2
        rm -f "$log"
        deps_die "cannot install ${packages[*]}: see \`apt-get install ${packages[*]}'"
    fi
    rm -f "$log"
}

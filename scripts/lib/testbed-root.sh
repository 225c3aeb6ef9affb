# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# shellcheck disable=SC2034 # variables set here are read in the other files
#
# Owns the cached root file systems, $CACHE/root-<suite>-<key>. Invariant: a directory of that name is complete,
# and nobody writes into it: it is made beside its place and renamed, and runs mount it as a lower layer.
# The key covers suite, architecture, package list and ROOT_VERSION; raise the latter with the recipe.
# Refuses: to name a mirror. It asks apt which ones this machine uses.

ROOT_VERSION=1
ROOT_PACKAGES=(
    # what is tested against
    containerd runc crun criu libcriu2 docker.io docker-cli tini
    # what CRIU, Docker and the tests call
    ca-certificates iproute2 iptables nftables procps psmisc attr acl e2fsprogs xfsprogs btrfs-progs kmod libcap2-bin
    # what the CRI and nerdctl call, where critest has its images from, and who reads exported checkpoints
    containernetworking-plugins docker-registry util-linux-extra checkpointctl
    # what the test images are made of, and what demo and tests drive
    bash busybox-static gcc git libc6-dev make python3 sqlite3 tmux
    # what one needs to look at it
    bpftool jq less strace
)

ROOT= # the root of this run's suite, once root_ensure has returned

root_key() {
    printf '%s\n' "$SUITE" "$(dpkg --print-architecture)" "$ROOT_VERSION" "${ROOT_PACKAGES[@]}" |
        sha256sum | cut -c1-16
}

root_ensure() {
    ROOT=$CACHE/root-$SUITE-$(root_key)
    [ -d "$ROOT" ] && return
    exec {BUILD_LOCK}>"$CACHE/build.lock"
    flock -n "$BUILD_LOCK" || { note "waiting for another build" && flock "$BUILD_LOCK"; }
    [ -d "$ROOT" ] || root_build "$ROOT" "${ROOT_PACKAGES[@]}"
    exec {BUILD_LOCK}>&-
}

# root_build DIR PACKAGE...: the caller holds the build lock.
root_build() {
    local dir=$1 tmp=$1.tmp log=$1.log mirror script
    shift
    note "making a $SUITE root in $dir (about a minute)"
    tool_ensure debootstrap debootstrap
    [ -e /usr/share/keyrings/debian-archive-keyring.gpg ] || package_install debian-archive-keyring
    mirror=$(mirror_find) || exit 125
    # Suites newer than this debootstrap are made as sid is.
    script=/usr/share/debootstrap/scripts/$SUITE
    [ -e "$script" ] || script=/usr/share/debootstrap/scripts/sid

    rm -rf --one-file-system "$tmp"
    mkdir -p "$tmp/etc/dpkg/dpkg.cfg.d"
    # A root that is thrown away when its making fails needs no fsync, and nobody reads manuals in it.
    cat >"$tmp/etc/dpkg/dpkg.cfg.d/testbed" <<'CFG'
force-unsafe-io
path-exclude=/usr/share/doc/*
path-exclude=/usr/share/man/*
path-exclude=/usr/share/info/*
path-exclude=/usr/share/locale/*
path-exclude=/usr/share/lintian/*
CFG
    local http https
    http=$(apt_option Acquire::http::Proxy)
    https=$(apt_option Acquire::https::Proxy)
    if ! env ${http:+"http_proxy=$http"} ${https:+"https_proxy=$https"} \
        debootstrap --variant=minbase --keyring=/usr/share/keyrings/debian-archive-keyring.gpg \
        --include="$(IFS=, && echo "$*")" \
        "$SUITE" "$tmp" "$mirror" "$script" >"$log" 2>&1 {CACHE_LOCK}>&- {BUILD_LOCK}>&-; then
        tail -n 5 "$log" >&2
        [ ! -e "$tmp/debootstrap/debootstrap.log" ] || tail -n 5 "$tmp/debootstrap/debootstrap.log" >&2
        die "debootstrap of $SUITE failed, its output is in $log"
    fi
    rm -rf "$tmp"/var/cache/apt/* "$tmp"/var/lib/apt/lists/* "$tmp"/var/log/*.log "$tmp"/var/log/apt
    rm -rf "$tmp"/usr/share/{doc,man,info,locale,lintian}
    echo crab-testbed >"$tmp/etc/hostname"
    printf '127.0.0.1 localhost crab-testbed\n::1 localhost\n' >"$tmp/etc/hosts"
    : >"$tmp/etc/resolv.conf"
    echo 'runtime-endpoint: unix:///run/containerd/containerd.sock' >"$tmp/etc/crictl.yaml"
    # The repository may belong to another user than root.
    printf '[safe]\n\tdirectory = *\n' >"$tmp/etc/gitconfig"
    mkdir -p "$tmp"/{src,.old} "$tmp"/usr/share/crab-testbed/images "$tmp"/usr/local/lib/crab-testbed "$tmp"/var/lib/{containerd,docker,crab}
    chmod 700 "$tmp/var/lib/crab"
    mv -T "$tmp" "$dir"
    rm -f "$log"
    BUILT=1
}

apt_option() {
    local value=
    eval "$(apt-config shell value "$1")"
    [ "$value" = DIRECT ] || echo "$value"
}

# The first archive of this machine's own apt sources that has the suite. apt itself parses them: both
# formats, options and all.
mirror_find() {
    local uri probe=$CACHE/probe
    while read -r uri; do
        if /usr/lib/apt/apt-helper download-file "$uri/dists/$SUITE/InRelease" "$probe" >/dev/null 2>&1 &&
            grep -q '^Origin: Debian$' "$probe"; then
            rm -f "$probe"
            echo "$uri"
            return
        fi
    done < <(apt-get --print-uris update 2>/dev/null |
        sed -nE "s|^'(.*)/dists/[a-z]+/InRelease' .*|\1|p" | awk '!seen[$0]++')
    die "none of this machine's apt sources has Debian $SUITE"
}

tool_ensure() {
    command -v "$1" >/dev/null || package_install "$2"
}

package_install() {
    note "installing $1"
    command -v apt-get >/dev/null || die "$1 is missing and there is no apt-get to install it"
    DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "$1" >/dev/null 2>&1 ||
        { apt-get update >/dev/null 2>&1 &&
            DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "$1" >/dev/null 2>&1; } ||
        die "cannot install $1: see \`apt-get install $1'"
}

# Removes what was made for this suite from an older recipe, unless some testbed runs.
cache_prune() {
    local path clients vm vmroot
    # This run may have needed neither.
    clients=$CACHE/clients-$(clients_key) vm=$CACHE/vm-$SUITE-$(vm_key)
    vmroot=$CACHE/vmroot-$SUITE-$(vm_root_key)
    if flock -n "$CACHE_LOCK"; then
        for path in "$CACHE"/{root,images,state,vm,vmroot}-"$SUITE"-* "$CACHE"/clients-*; do
            case $path in
                "$ROOT" | "$IMAGES" | "$STATE" | "$clients" | "$vm" | "$vmroot") ;;
                *) rm -rf --one-file-system "$path" ;;
            esac
        done
    fi
    flock -s "$CACHE_LOCK"
}

cache_clean() {
    flock -n "$CACHE_LOCK" || die "a testbed is in use: $CACHE is not removed"
    run_sweep
    rm -rf --one-file-system "$CACHE" || die "cannot remove all of $CACHE"
}

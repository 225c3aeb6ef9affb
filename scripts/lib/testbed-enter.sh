#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# PID 1 of the new namespaces, still on the machine's own root. Builds the mount tree of the host and
# pivots into it: an overlay over the cached root, with real-disk directories where a daemon or a test
# mounts overlays of its own (an overlay's upper directory cannot lie on an overlay).

set -euo pipefail

ROOT=$1 RUN=$2 REPO=$3 IMAGES=$4 CGROUP=$5 CLIENTS=$6
shift 6

die() {
    echo "testbed: $*" >&2
    exit 125
}

for ns in pid mnt net ipc uts cgroup; do
    echo "ns $(readlink "/proc/self/ns/$ns")" >&4
done

hostname crab-testbed
ip link set lo up 2>/dev/null || die "cannot bring lo up in the new network namespace"
# Docker warns at every run otherwise. This is the setting of the new network namespace.
echo 1 >/proc/sys/net/ipv4/ip_forward || true

new=$RUN/root
mount -t overlay testbed -o "lowerdir=$ROOT,upperdir=$RUN/upper,workdir=$RUN/work" "$new" ||
    die "cannot mount an overlay in $RUN: is the cache on an overlay itself? (see \$CRAB_TESTBED_CACHE)"

# The cgroup mounts of the machine, before its /sys is out of sight.
hierarchies=$(awk '{ for (i = 7; $i != "-"; i++) ; if ($(i + 1) == "cgroup") print $5, $(i + 3) }' /proc/self/mountinfo)

mount -t proc -o nosuid,nodev,noexec proc "$new/proc"
mount -t sysfs -o nosuid,nodev,noexec sysfs "$new/sys"
mount --bind /dev "$new/dev"
mount -t devpts -o newinstance,ptmxmode=0666,mode=620,gid=5 devpts "$new/dev/pts"
mount -t tmpfs -o mode=1777,nosuid,nodev tmpfs "$new/dev/shm"
mount -t tmpfs -o mode=755,nosuid,nodev tmpfs "$new/run"
mkdir "$new/run/lock"
mount --bind "$RUN/tmp" "$new/tmp"
for d in containerd docker crab; do
    mount --bind "$RUN/$d" "$new/var/lib/$d"
done
[ -z "$IMAGES" ] || mount --bind -o ro "$IMAGES" "$new/usr/share/crab-testbed/images"
[ -z "$CLIENTS" ] || mount --bind -o ro "$CLIENTS" "$new/usr/local/lib/crab-testbed"
mount --bind "$REPO" "$new/src"
# The cache, and this very root in it, must not be seen again below /src.
[ ! -d "$new/src/.testbed" ] || mount -t tmpfs -o mode=755,ro tmpfs "$new/src/.testbed"

# One instance each for this mount namespace: pins go away with it. Neither file system is needed to run
# containers; a test that needs one says so itself.
mount -t bpf -o mode=700 bpf "$new/sys/fs/bpf" || true
mount -t tracefs tracefs "$new/sys/kernel/tracing" || true
mount -t debugfs debugfs "$new/sys/kernel/debug" || true

# The cgroup namespace was made inside the run's cgroups, so the roots of these mounts are those.
if [ "$CGROUP" = v2 ]; then
    mount -t cgroup2 -o nosuid,nodev,noexec cgroup2 "$new/sys/fs/cgroup"
else
    mount -t tmpfs -o mode=755,nosuid,nodev,noexec tmpfs "$new/sys/fs/cgroup"
    while read -r mount options; do
        dir=$new/sys/fs/cgroup/${mount##*/}
        mkdir "$dir"
        which=$(tr , '\n' <<<"$options" | grep -vxE 'rw|ro|xattr|clone_children|noprefix|cpuset_v2_mode|release_agent=.*' | paste -sd,)
        case $which in
            name=*) mount -t cgroup -o "nosuid,nodev,noexec,none,$which" cgroup "$dir" ;;
            *)
                mount -t cgroup -o "nosuid,nodev,noexec,$which" cgroup "$dir"
                # Where two controllers share a hierarchy, each also has a link by its own name.
                for c in ${which//,/ }; do
                    [ -e "${dir%/*}/$c" ] || ln -s "${mount##*/}" "${dir%/*}/$c"
                done
                ;;
        esac
    done <<<"$hierarchies"
    mkdir "$new/sys/fs/cgroup/unified"
    mount -t cgroup2 -o nosuid,nodev,noexec cgroup2 "$new/sys/fs/cgroup/unified"
fi

cd "$new"
pivot_root . .old
cd /
umount -l /.old
# As systemd leaves it on a usual host; the peer group is this namespace's own.
mount --make-rshared /
exec bash /src/scripts/lib/testbed-inside.sh "$CGROUP" "$@"

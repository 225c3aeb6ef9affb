#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# PID 1 inside the host: starts the daemons, runs the command, ends everything. bash reaps what is
# reparented to it. Descriptor 4 is the report to the outside; nothing else gets it.

set -uo pipefail

SERVICES=/src/scripts/lib/testbed-services.sh

# The BPF objects that processes hold or that are pinned now. After the end none of them may be left.
report_bpf() {
    local f type
    {
        grep -shoE '^(prog_id|map_id|link_id):.*[0-9]+' /proc/[0-9]*/fdinfo/* |
            sed -E 's/^(prog|map|link)_id:[[:space:]]*/bpf \1 /'
        find /sys/fs/bpf -type f 2>/dev/null | while read -r f; do
            for type in prog map link; do
                bpftool -j "$type" show pinned "$f" 2>/dev/null | jq -r "\"bpf $type \\(.id)\"" 2>/dev/null
            done
        done
    } | sort -u >&4
}

# Everything but PID 1. A task in a frozen v1 cgroup does not die of SIGKILL.
end_all() {
    find /sys/fs/cgroup/freezer -name freezer.state -exec sh -c 'for f; do echo THAWED >"$f"; done' sh {} + 2>/dev/null
    kill -KILL -1 2>/dev/null
}

prepare() {
    bash "$SERVICES" start containerd dockerd 4>&- || return 125
    local image archive
    for image in busybox debian; do
        archive=/usr/share/crab-testbed/images/$image.tar
        ctr image import "$archive" 4>&- >/dev/null &&
            ctr -n k8s.io image import "$archive" 4>&- >/dev/null &&
            docker load -qi "$archive" 4>&- >/dev/null || return 125
    done
    # Under the name that this containerd runs pods with unless it is told another one.
    image=$(containerd config default | grep -o 'registry.k8s.io/pause:[0-9.]*' | head -n 1)
    ctr -n k8s.io image import /usr/share/crab-testbed/images/pause.tar 4>&- >/dev/null &&
        ctr -n k8s.io image tag docker.io/crab/pause:latest "$image" 4>&- >/dev/null || return 125
    bash "$SERVICES" stop dockerd containerd 4>&- || return 125
    : >/tmp/prepared
}

session() {
    local services=$1
    shift
    if [ "$services" = 1 ]; then
        bash "$SERVICES" start containerd dockerd 4>&- || return 125
    fi
    cd /src && env -- "$@" 4>&-
}

main() {
    local mode=$2 status
    export TESTBED_CGROUP=$1
    shift 2
    case $mode in
        prepare) prepare ;;
        session) session "$@" ;;
    esac
    status=$?
    report_bpf
    end_all
    exit $status
}

main "$@"

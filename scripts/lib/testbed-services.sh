#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Starts and stops containerd and dockerd inside the testbed: testbed-services.sh VERB
# [containerd] [dockerd] (both by default). VERB: start, stop, restart, kill (by
# SIGKILL, as a crash), or answers (its exit status says so). Logs: /var/log/containerd.log,
# /var/log/dockerd.log. `start' returns when the daemon answers, `stop' when it is gone.

set -uo pipefail

PIDS=/run/crab-testbed
# The daemons run with them as they are.
SAMPLES=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/../../config/samples
WAIT=600 # in steps of 50 ms

die() {
    echo "testbed: $*" >&2
    exit 1
}

running() {
    local pid
    read -r pid 2>/dev/null <"$PIDS/$1.pid" && kill -0 "$pid" 2>/dev/null
}

answers() {
    case $1 in
        containerd) [ -S /run/containerd/containerd.sock ] && ctr version ;;
        dockerd) [ -S /run/docker.sock ] && docker version ;;
    esac >/dev/null 2>&1
}

# containerd's configuration: the sample that users get, as it is, and after it what this host needs.
configure() {
    local sample runtime images bin_dir
    case $(containerd --version | awk '{ print $3 }') in
        1.*)
            sample=containerd-1.7.toml
            runtime=io.containerd.grpc.v1.cri
            images=$runtime
            bin_dir='bin_dir = "/usr/lib/cni"'
            ;;
        *)
            sample=containerd-2.toml
            runtime=io.containerd.cri.v1.runtime
            images=io.containerd.cri.v1.images
            bin_dir='bin_dirs = ["/usr/lib/cni"]'
            ;;
    esac
    mkdir -p "$PIDS/cni"
    {
        cat "$SAMPLES/$sample" && cat <<CFG
[plugins."$runtime"]
  # The machine may lack CAP_SYS_RESOURCE, and then no process gets a lower score than containerd's.
  restrict_oom_score_adj = true
$(cgroups_of_pods)
[plugins."$runtime".cni]
  $bin_dir
  conf_dir = "$PIDS/cni"
[plugins."$images".registry]
  config_path = "$PIDS/registries"
CFG
    } >"$PIDS/containerd.toml" &&
        # No masquerading and no packet filter: nothing is beyond this network.
        cat >"$PIDS/cni/10-crab.conflist" <<'CNI'
{
  "cniVersion": "0.4.0",
  "name": "crab-testbed",
  "plugins": [
    {
      "type": "bridge", "bridge": "crab0", "isGateway": true, "hairpinMode": true,
      "ipam": {
        "type": "host-local", "dataDir": "/run/crab-testbed/ipam",
        "ranges": [[{ "subnet": "10.85.0.0/16" }]], "routes": [{ "dst": "0.0.0.0/0" }]
      }
    },
    { "type": "portmap", "capabilities": { "portMappings": true } }
  ]
}
CNI
}

# The CRI gives every pod CPU shares, which runc refuses where the cpu controller is bound to v1.
cgroups_of_pods() {
    if [ "${TESTBED_CGROUP:-}" = v2 ] && ! grep -qw cpu /sys/fs/cgroup/cgroup.controllers; then
        echo '  disable_cgroup = true'
    fi
}

launch() {
    # shellcheck disable=SC2016 # expanded by the inner shell
    # The score keeps the kernel's OOM killer off the daemons, as their units do.
    setsid bash -c 'echo $$ >"$1"; echo -500 2>/dev/null >/proc/self/oom_score_adj; shift; exec "$@"' \
        _ "$PIDS/$1.pid" "${@:2}" </dev/null >>"/var/log/$1.log" 2>&1 &
}

start() {
    if answers "$1"; then return 0; fi
    rm -f "$PIDS/$1.pid"
    case $1 in
        containerd)
            configure || die "cannot configure containerd in $PIDS"
            launch containerd containerd --config "$PIDS/containerd.toml"
            ;;
        dockerd)
            rm -f /run/docker.pid
            launch dockerd dockerd --config-file "$SAMPLES/docker-daemon.json" --containerd /run/containerd/containerd.sock --experimental \
                --bridge=none --iptables=false --ip6tables=false --ip-forward=false --ip-masq=false \
                --exec-opt native.cgroupdriver=cgroupfs
            ;;
    esac
    for ((i = 0; i < WAIT; i++)); do
        if answers "$1"; then return 0; fi
        if [ "$i" -gt 5 ] && ! running "$1"; then break; fi
        sleep 0.05
    done
    tail -n 5 "/var/log/$1.log" >&2
    die "$1 does not answer, see /var/log/$1.log"
}

stop() {
    local pid signal=$2
    running "$1" || return 0
    read -r pid <"$PIDS/$1.pid"
    kill "-$signal" "$pid"
    for ((i = 0; i < WAIT; i++)); do
        running "$1" || { rm -f "$PIDS/$1.pid" && return 0; }
        sleep 0.05
    done
    die "$1 (process $pid) does not stop"
}

main() {
    local verb=${1:-} name
    shift
    [ $# -gt 0 ] || set -- containerd dockerd
    mkdir -p "$PIDS"
    for name in "$@"; do
        case $name in containerd | dockerd) ;; *) die "no service \`$name'" ;; esac
    done
    for name in "$@"; do
        case $verb in
            start) start "$name" ;;
            answers) answers "$name" || return 1 ;;
            stop) stop "$name" TERM ;;
            kill) stop "$name" KILL ;;
            restart) stop "$name" TERM && start "$name" ;;
            *) die "start, stop, restart, kill or answers?" ;;
        esac
    done
}

main "$@"

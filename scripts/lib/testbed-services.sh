#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Starts and stops containerd and dockerd inside the testbed: testbed-services.sh VERB
# [containerd] [dockerd] (both by default) [registry]. VERB: start, stop, restart, kill (by
# SIGKILL, as a crash), or answers (its exit status says so). Logs: /var/log/containerd.log,
# /var/log/dockerd.log. `start' returns when the daemon answers, `stop' when it is gone. The registry is Debian's, on the
# loopback address; `start' fills it with critest's images, and the CRI pulls from it what it pulls from anywhere.

set -uo pipefail

PIDS=/run/crab-testbed
# The daemons run with them as they are.
SAMPLES=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/../../config/samples
WAIT=600 # in steps of 50 ms
REGISTRY_PORT=5000

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
        registry) : </dev/tcp/127.0.0.1/$REGISTRY_PORT ;;
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
        # Where shims that are told of no other place do not find it: a test lets them, when it is ready.
        if [ -n "${TESTBED_TTRPC:-}" ]; then printf '[ttrpc]\n  address = "%s"\n' "$TESTBED_TTRPC"; fi
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

# By way of a namespace of containerd that nobody else looks at.
fill_registry() {
    local name names
    ctr -n critest image import --no-unpack /usr/share/crab-testbed/images/critest.tar >/dev/null || return 1
    names=$(ctr -n critest image ls -q) || return 1
    for name in $names; do
        ctr -n critest image push --plain-http "127.0.0.1:$REGISTRY_PORT/${name#*/}" "$name" >/dev/null || return 1
    done
    # shellcheck disable=SC2086 # a word each
    ctr -n critest image rm $names >/dev/null
}

# In a machine of its own they are systemd's.
unit() {
    [ -d /run/systemd/system ] || return 1
    case $1 in
        containerd) UNITS=(containerd.service) ;;
        # A question to its socket would start it again.
        dockerd) UNITS=(docker.socket docker.service) ;;
        *) return 1 ;;
    esac
}

launch() {
    # shellcheck disable=SC2016 # expanded by the inner shell
    # The score keeps the kernel's OOM killer off the daemons, as their units do.
    setsid bash -c 'echo $$ >"$1"; echo -500 2>/dev/null >/proc/self/oom_score_adj; shift; exec "$@"' \
        _ "$PIDS/$1.pid" "${@:2}" </dev/null >>"/var/log/$1.log" 2>&1 &
}

start() {
    if answers "$1"; then return 0; fi
    if unit "$1"; then
        systemctl reset-failed "${UNITS[@]}"
        systemctl start "${UNITS[@]}" || die "$1 does not start, see its journal"
        return
    fi
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
        registry)
            mkdir -p "$PIDS/registries/_default"
            printf '[host."http://127.0.0.1:%s"]\n  capabilities = ["pull", "resolve"]\n' "$REGISTRY_PORT" \
                >"$PIDS/registries/_default/hosts.toml"
            cat >"$PIDS/registry.yml" <<CFG
version: 0.1
storage:
  filesystem:
    rootdirectory: /tmp/crab-registry
http:
  addr: 127.0.0.1:$REGISTRY_PORT
CFG
            launch registry docker-registry serve "$PIDS/registry.yml"
            ;;
    esac
    for ((i = 0; i < WAIT; i++)); do
        if answers "$1"; then
            [ "$1" != registry ] || fill_registry || die "cannot fill the registry"
            return 0
        fi
        if [ "$i" -gt 5 ] && ! running "$1"; then break; fi
        sleep 0.05
    done
    tail -n 5 "/var/log/$1.log" >&2
    die "$1 does not answer, see /var/log/$1.log"
}

stop() {
    local pid signal=$2
    if unit "$1"; then
        [ "$signal" = TERM ] || systemctl kill --kill-whom=main -s "$signal" "${UNITS[-1]}"
        # Also keeps one that was killed from being started again.
        systemctl stop "${UNITS[@]}"
        return
    fi
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
    [ -d /run/systemd/system ] || mkdir -p "$PIDS"
    for name in "$@"; do
        case $name in containerd | dockerd | registry) ;; *) die "no service \`$name'" ;; esac
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

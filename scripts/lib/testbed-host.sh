# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
#
# --host: no throw-away root, but this machine, which must be Debian 13 or newer with the packages. Starts the
# daemons that do not answer, imports the images that are missing, runs CMD in the repository, and stops
# what it started. Refuses: to install anything, and to undo what CMD itself did to the machine.

host_check() {
    local id version tool missing=()
    # shellcheck disable=SC1091
    id=$(. /etc/os-release && echo "${ID:-}")
    # shellcheck disable=SC1091
    version=$(. /etc/os-release && echo "${VERSION_ID:-99}")
    if [ "$id" != debian ] || [ "${version%%.*}" -lt 13 ]; then
        die "--host wants Debian 13 or newer, this is $id $version: leave --host out"
    fi
    for tool in containerd ctr runc crun criu dockerd docker git gcc python3 tmux sqlite3 busybox; do
        command -v "$tool" >/dev/null || missing+=("$tool")
    done
    [ ${#missing[@]} = 0 ] || die "--host: missing on this machine: ${missing[*]}"
}

host_import() {
    ctr -n "$1" image ls -q | grep -qxF "docker.io/crab/$2:latest" ||
        ctr -n "$1" image import "$IMAGES/$2.tar" >/dev/null || die "cannot import $2 into containerd"
}

host_main() {
    local status=0 name image namespace started=() placed=()
    case $VERB in
        run) ;;
        shell) CMD=(bash -l) ;;
        *) bad_usage "--host goes with run and shell" ;;
    esac
    host_check
    mkdir -p "$CACHE" || die "cannot make $CACHE"
    local mode=v1
    [ "$(stat -fc %T /sys/fs/cgroup)" != cgroup2fs ] || mode=v2
    [ -z "$CGROUP" ] || [ "$CGROUP" = $mode ] || die "--host: this machine is in cgroup $mode mode"
    export TESTBED_CGROUP=$mode
    # Where a daemon that runs already looks for a runtime, too.
    for name in containerd-shim-crab-v1 crabd crab; do
        [ -f "$BIN/$name" ] || continue
        if [ -e "/usr/local/bin/$name" ]; then
            note "using /usr/local/bin/$name as it is, not $BIN/$name"
        else
            cp "$BIN/$name" "/usr/local/bin/$name"
            placed+=("/usr/local/bin/$name")
        fi
    done
    clients_ensure
    if [ -n "$CLIENTS" ]; then
        export PATH=$PATH:$CLIENTS CONTAINER_RUNTIME_ENDPOINT=unix:///run/containerd/containerd.sock
    else
        export CRAB_TESTBED_NO_CLIENTS=$NO_CLIENTS
    fi
    if [ "$SERVICES" = 1 ]; then
        images_ensure / "$CACHE/images-host-$(images_key)"
        for name in containerd dockerd; do
            if ! bash "$LIB/testbed-services.sh" answers "$name"; then
                bash "$LIB/testbed-services.sh" start "$name" || die "cannot start $name"
                started=("$name" "${started[@]}")
            fi
        done
        for image in busybox debian; do
            for namespace in default k8s.io; do
                host_import "$namespace" "$image"
            done
            if ! docker image inspect "crab/$image" >/dev/null 2>&1; then
                docker load -qi "$IMAGES/$image.tar" >/dev/null || die "cannot load $image into Docker"
            fi
        done
        host_import k8s.io pause
        # What pods are run with, if nobody has configured anything else.
        image=$(containerd config default | grep -o 'registry.k8s.io/pause:[0-9.]*' | head -n 1)
        ctr -n k8s.io image ls -q | grep -qxF "$image" ||
            ctr -n k8s.io image tag docker.io/crab/pause:latest "$image" >/dev/null || die "cannot name the pause image"
    fi
    (cd "$REPO" && exec env "${ENVS[@]}" "${CMD[@]}") || status=$?
    [ ${#started[@]} = 0 ] || bash "$LIB/testbed-services.sh" stop "${started[@]}" || status=125
    [ ${#placed[@]} = 0 ] || rm -f "${placed[@]}"
    return $status
}

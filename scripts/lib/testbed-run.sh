# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# shellcheck disable=SC2034 # variables set here are read in the other files
#
# Owns one run, $CACHE/run/<name>: the overlay's upper directory, the daemons' directories on the real disk,
# the cgroups, and the end of all of them. A run holds a lock on its directory; one without is swept away.
# Invariant: when run_testbed returns, no process, mount, cgroup, namespace, BPF object or loop device of the
# run is left, or the status is 125 and a line says what is.
# Also owns the prepared daemon state, $CACHE/state-<suite>-<key>: /var/lib/containerd and /var/lib/docker after
# the import of the images.

STATE= # the prepared state, once state_ensure has returned
RUN=   # directory of this run
UNIT=  # process that made the namespaces; its child is PID 1 inside
STATUS=0 # of the last run
PASS=() # environment of PID 1 inside

state_key() {
    printf '%s\n' "$(root_key)" "$(images_key)" "$(cat "$LIB"/testbed-{inside,services}.sh | sha256sum)" |
        sha256sum | cut -c1-16
}

state_ensure() {
    STATE=$CACHE/state-$SUITE-$(state_key)
    [ -d "$STATE" ] && return
    exec {STATE_LOCK}>"$CACHE/state.lock"
    flock "$STATE_LOCK"
    if [ ! -d "$STATE" ]; then
        note "importing the test images into containerd and Docker"
        run_testbed prepare
        [ "$STATUS" = 0 ] || die "the images could not be imported (status $STATUS)"
    fi
    exec {STATE_LOCK}>&-
}

# Removes runs whose owner is gone.
run_sweep() {
    local dir lock
    for dir in "$CACHE"/run/*/; do
        [ -e "$dir/lock" ] || continue
        exec {lock}<"$dir/lock"
        if flock -n "$lock"; then
            note "removing what an earlier run left: ${dir%/}"
            [ ! -e "$dir/cgroups" ] || cgroup_remove "$dir" || true
            rm -rf --one-file-system "$dir" || note "cannot remove all of $dir"
        fi
        exec {lock}<&-
    done
}

run_create() {
    local name=crab-testbed-$$-$RANDOM
    mkdir -p "$CACHE/run"
    # Under a name that the sweep skips until the lock is held.
    local tmp=$CACHE/run/.$name
    mkdir "$tmp"
    : >"$tmp/lock"
    exec {RUN_LOCK}<"$tmp/lock"
    flock "$RUN_LOCK"
    RUN=$CACHE/run/$name
    mv -T "$tmp" "$RUN"
    mkdir "$RUN"/{upper,work,root,tmp,containerd,docker,crab}
    chmod 1777 "$RUN/tmp"
    chmod 700 "$RUN/crab"
    chmod 710 "$RUN/docker"
}

# Lays out the prepared state. What the daemons never write again is linked (blobs and the files of image
# layers), the rest is copied: 0.3 s instead of some 3 s, and no second 400 MB on the disk.
state_copy() {
    local d
    for d in containerd docker; do
        cp -al "$STATE/$d/." "$RUN/$d/"
        (cd "$STATE/$d" &&
            find . \( -path '*/snapshots/*/fs' -o -path '*/content/blobs' -o -path './overlay2/*/diff' \) -prune \
                -o -type f -print0 | xargs -0r cp -a --parents --remove-destination -t "$RUN/$d")
    done
}

# The environment inside: not this machine's, but for what steers the code under test.
run_environment() {
    local name
    PASS=(HOME=/root LANG=C.UTF-8 USER=root CRAB_TESTBED=1
        PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/usr/local/lib/crab-testbed)
    [ -n "$CLIENTS" ] || PASS+=("CRAB_TESTBED_NO_CLIENTS=$NO_CLIENTS")
    for name in $(compgen -e); do
        case $name in
            CRAB_TESTBED_*) ;;
            CRAB_* | RUST_* | CI | TERM) PASS+=("$name=${!name}") ;;
        esac
    done
    PASS+=("${ENVS[@]}")
}

# run_testbed prepare|session: runs CMD, sets STATUS.
run_testbed() {
    local mode=$1 name
    STATUS=0
    run_environment
    run_create
    trap 'run_interrupted 130' INT
    trap 'run_interrupted 143' TERM
    trap 'run_interrupted 129' HUP
    trap run_abandon EXIT
    if [ "$mode" = session ]; then
        [ "$SERVICES" = 0 ] || state_copy
        for name in containerd-shim-crab-v1 crabd crab; do
            if [ -f "$BIN/$name" ]; then
                mkdir -p "$RUN/upper/usr/local/bin"
                # A copy: a build during the run must not change what runs.
                cp "$BIN/$name" "$RUN/upper/usr/local/bin/$name"
            fi
        done
    fi
    local loops
    loops=$(losetup -nO NAME 2>/dev/null || true)
    cgroup_create "${RUN##*/}"
    : >"$RUN/report"
    (
        cgroup_enter "$RUN"
        exec {CACHE_LOCK}>&- {RUN_LOCK}<&-
        [ -z "${STATE_LOCK:-}" ] || exec {STATE_LOCK}>&-
        # A background job of a script ignores SIGINT; the command must not. And if this script is
        # killed, its child goes with it, and so PID 1 inside and everything below.
        # shellcheck disable=SC2016 # expanded there
        exec env -i --default-signal=INT,QUIT "${PASS[@]}" \
            setpriv --pdeathsig KILL \
            unshare --cgroup -- bash -c 'echo $$ >"$1" && shift && exec "$@"' _ "$(cgroup_leaf "$RUN")/cgroup.procs" \
            unshare --mount --propagation private --uts --ipc --net --pid --fork --kill-child=KILL -- \
            bash "$LIB/testbed-enter.sh" "$ROOT" "$RUN" "$REPO" "${IMAGES:-}" "$CGROUP" "$CLIENTS" "$mode" "$SERVICES" "${CMD[@]}"
    ) 4>>"$RUN/report" <&0 &
    UNIT=$!
    wait "$UNIT" || STATUS=$?
    trap - INT TERM HUP EXIT
    run_destroy "$loops" "$mode" || STATUS=125
}

# A signal: the run is over, whatever it is doing.
run_interrupted() {
    trap '' INT TERM HUP
    trap - EXIT
    run_destroy "" interrupted || true
    exit "$1"
}

# The script fails before or beside the run.
run_abandon() {
    local status=$?
    trap '' INT TERM HUP
    run_destroy "" interrupted || true
    exit $status
}

run_destroy() {
    local loops_before=$1 mode=$2 bad=0 ended
    [ -d "$RUN" ] || return 0
    ended=$(uptime_ticks)
    if [ -n "$UNIT" ]; then
        kill -KILL "$UNIT" 2>/dev/null || true
        wait "$UNIT" 2>/dev/null || true
        UNIT=
    fi
    if [ -e "$RUN/cgroups" ]; then
        cgroup_remove "$RUN" || bad=1
    fi
    run_check "$loops_before" "$ended" || bad=1
    if [ -n "$LOGS" ] && [ "$mode" != prepare ] && [ -d "$RUN/upper/var/log" ]; then
        { mkdir -p "$LOGS" && cp -a "$RUN/upper/var/log/." "$LOGS/"; } || note "cannot copy the logs to $LOGS"
    fi
    if [ "$mode" = prepare ] && [ $bad = 0 ] && [ -e "$RUN/tmp/prepared" ]; then
        rm -rf --one-file-system "$STATE.tmp"
        mkdir "$STATE.tmp"
        mv "$RUN/containerd" "$RUN/docker" "$STATE.tmp/"
        mv -T "$STATE.tmp" "$STATE"
        BUILT=1
    fi
    rm -rf --one-file-system "$RUN" || { note "left behind: $RUN" && bad=1; }
    exec {RUN_LOCK}<&-
    RUN=
    return $bad
}

# How long the machine runs, in the clock ticks of /proc/<pid>/stat.
uptime_ticks() {
    awk -v hz="$(getconf CLK_TCK)" '{ printf "%d", $1 * hz }' /proc/uptime
}

# holder_of NAMESPACE TICKS: a process that has it and began by then; nothing if there is none. One that began
# later has another one of the same number: the kernel gives the smallest that is free, and other runs make namespaces.
holder_of() {
    local found start
    while read -r found; do
        found=${found%/ns/*}
        # The name may have blanks; what follows it is counted from its end.
        start=$(sed 's/.*) //' "$found/stat" 2>/dev/null | cut -d' ' -f20) || continue
        if [ -n "$start" ] && [ "$start" -le "$2" ]; then
            echo "$found"
            return
        fi
    done < <(find /proc/[0-9]*/ns -maxdepth 1 -lname "${1//[\[\]]/?}" 2>/dev/null)
}

# Looks for what the run could have left outside of its cgroups and directories. $RUN/report holds its
# namespaces ("ns pid:[4026532345]") and the BPF objects that were there at its end ("bpf prog 17").
run_check() {
    local loops_before=$1 ended=$2 bad=0 kind a b found name ino
    while read -r kind a b; do
        case $kind in
            ns)
                # A process that is exiting holds its namespaces for a moment.
                for _ in {1..20}; do
                    found=$(holder_of "$a" "$ended")
                    [ -n "$found" ] || break
                    sleep 0.1
                done
                [ -z "$found" ] || { note "left behind: namespace $a, held by $found" && bad=1; }
                ;;
            bpf)
                # The kernel frees them after a grace period.
                for _ in {1..50}; do
                    chroot "$ROOT" bpftool "$a" show id "$b" >/dev/null 2>&1 || continue 2
                    sleep 0.1
                done
                note "left behind: BPF $a $b" && bad=1
                ;;
        esac
    done <"$RUN/report"
    if found=$(grep -F " $RUN" /proc/self/mountinfo); then
        note "left behind: a mount: $found" && bad=1
    fi
    # A loop device belongs to the run if the file behind it does.
    while read -r name ino; do
        if [ -z "$name" ] || [[ $'\n'$loops_before$'\n' == *$'\n'"$name"$'\n'* ]]; then
            continue
        fi
        if [ -n "$(find "$RUN" -xdev -inum "$ino" -print -quit)" ]; then
            losetup -d "$name" || true
            note "left behind: the loop device $name, now detached" && bad=1
        fi
    done < <(losetup -nO NAME,BACK-INO 2>/dev/null || true)
    return $bad
}

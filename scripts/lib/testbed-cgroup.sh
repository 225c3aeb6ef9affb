# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
#
# Owns the cgroups of one run: a directory of the same name in every hierarchy that the machine has mounted.
# All that runs inside is below them, so that killing and removing is complete even where a process has left
# its session, its namespaces or its parent. Their paths are in $RUN/cgroups, for the sweep after a SIGKILL.
# Refuses: to touch a cgroup that is not in that file.

# "TYPE MOUNTPOINT OPTIONS" of every cgroup mount whose root is the hierarchy's.
cgroup_mounts() {
    awk '{
        for (i = 7; $i != "-"; i++) ;
        type = $(i + 1); options = $(i + 3)
        if ((type == "cgroup" || type == "cgroup2") && !seen[$5]++) print type, $5, options
    }' /proc/self/mountinfo
}

# This process's cgroup in the hierarchy with these options ("/" for the root).
cgroup_own() {
    local type=$1 options=$2 id controllers path
    while IFS=: read -r id controllers path; do
        if [ "$type" = cgroup2 ]; then
            [ "$id" != 0 ] || { echo "$path" && return; }
        elif [ -n "$controllers" ] && [[ ,$options, == *,$controllers,* ]]; then
            echo "$path"
            return
        fi
    done </proc/self/cgroup
    echo /
}

cgroup_choose() {
    local v1=0
    [[ $(cgroup_mounts) != *"cgroup /"* ]] || v1=1
    [[ $(cgroup_mounts) == *"cgroup2 /"* ]] || die "no cgroup2 hierarchy is mounted on this machine"
    if [ -z "$CGROUP" ]; then
        CGROUP=v2
        [ $v1 = 0 ] || CGROUP=v1
    elif [ "$CGROUP" = v1 ] && [ $v1 = 0 ]; then
        die "--cgroup v1: this machine has no v1 controllers mounted"
    fi
}

# Makes the cgroups of this run: below this process's own in v1, so that its limits hold, and at the top in
# v2, where a cgroup that has processes cannot hand controllers to its children.
cgroup_create() {
    local name=$1 type mount options own dir f
    while read -r type mount options; do
        own=$(cgroup_own "$type" "$options")
        [ "$type" = cgroup ] || own=/
        dir=$mount${own%/}/$name
        echo "$dir" >>"$RUN/cgroups"
        mkdir "$dir" || die "cannot make the cgroup $dir"
        # A new cpuset is empty, and takes no process until it is not.
        for f in cpuset.cpus cpuset.mems; do
            if [ "$type" = cgroup ] && [ -e "$dir/$f" ]; then
                cat "${dir%/*}/$f" >"$dir/$f"
            fi
        done
        if [ "$type" = cgroup2 ]; then
            # Controllers can be handed down only from a cgroup without processes: where they are instead.
            mkdir "$dir/init"
            # A controller that the machine keeps for itself is missing inside as well.
            for f in $(<"$mount/cgroup.controllers"); do
                echo "+$f" 2>/dev/null >"$mount/cgroup.subtree_control" || true
            done
        fi
    done < <(cgroup_mounts)
}

# Moves the calling process ($BASHPID) into all of them.
cgroup_enter() {
    local dir
    while read -r dir; do
        echo "$BASHPID" >"$dir/cgroup.procs" || die "cannot enter the cgroup $dir"
    done <"$1/cgroups"
}

# cgroup_leaf RUN: that below the v2 one in which the processes of the host itself are.
cgroup_leaf() {
    local dir
    while read -r dir; do
        [ ! -d "$dir/init" ] || echo "$dir/init"
    done <"$1/cgroups"
}

# cgroup_kill RUN: one round. Frozen tasks of a v1 freezer die only when thawed.
cgroup_kill() {
    local dir
    [ -e "$1/cgroups" ] || return 0
    while read -r dir; do
        [ -d "$dir" ] || continue
        if [ -e "$dir/cgroup.kill" ]; then
            echo 1 2>/dev/null >"$dir/cgroup.kill" || true
        fi
        if [ -e "$dir/freezer.state" ]; then
            find "$dir" -name freezer.state -exec sh -c 'for f; do echo THAWED >"$f"; done' sh {} + 2>/dev/null || true
        fi
        cgroup_pids "$dir" | xargs -r kill -KILL 2>/dev/null || true
    done <"$1/cgroups"
}

cgroup_pids() {
    find "$1" -name cgroup.procs -exec cat {} + 2>/dev/null || true
}

# cgroup_remove RUN: kills until nothing is left, then removes. Fails when something is still there.
cgroup_remove() {
    local dir left
    for _ in {1..200}; do
        left=
        cgroup_kill "$1"
        while read -r dir; do
            [ -d "$dir" ] || continue
            find "$dir" -depth -type d -exec rmdir {} + 2>/dev/null || true
            [ ! -d "$dir" ] || left=$dir
        done <"$1/cgroups"
        [ -n "$left" ] || return 0
        sleep 0.1
    done
    note "left behind: the cgroup $left"
    return 1
}

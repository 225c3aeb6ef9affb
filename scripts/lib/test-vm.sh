#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# In a test machine (scripts/testbed run --vm): installs Crab as a user would, has the doctor look at it, runs tests, and
# takes it off again. test-vm.sh DIR SECONDS FILTER TEST...: the executables are in DIR, each may take so long.
# Invariant: its status is not 0 if installing, the doctor or uninstalling fails; how the tests ended is in their own
# files, in /var/log/crab-test.

set -uo pipefail

dir=$1 limit=$2 filter=$3
shift 3
results=/var/log/crab-test
mkdir -p "$results"
export CRAB_TEST_SKIPPED=$results/skipped

# What does not hold there, and why.
declare -A SKIP=(
    [a_container_in_the_middle_of_a_checkpoint_is_removed_at_once]="it compares times, which mean nothing under emulation"
    [the_runtime_runs_from_one_sealed_copy_as_long_as_its_program_is_the_same]="a shim waits for a copy only for a moment, in which it does not come there"
)
for name in "${!SKIP[@]}"; do
    echo "$name: ${SKIP[$name]}" >>"$CRAB_TEST_SKIPPED"
done

# Of crab-bpf's: which calls count with the programs that only a kernel takes whose text may be patched.
BPF_TESTS=(every_change_of_a_watched the_32_bit_entry what_can_write a_call_that_ends_after)
export CRAB_TEST_PROGRAMS=fexit:syscalls CRAB_TEST_KEPT_PINS=/run/crab-test-pins

die() {
    echo "test-vm: $*" >&2
    exit 1
}

scripts/install --bin "$TESTBED_BIN" --containerd --docker || die "it could not be installed"
crab doctor || die "the doctor finds faults"

skip=()
for name in "${!SKIP[@]}"; do
    skip+=("--skip=$name")
done
for name; do
    echo "--- $name"
    only=(${filter:+"$filter"})
    [ "$name" != bpf ] || [ -n "$filter" ] || only=("${BPF_TESTS[@]}")
    timeout -k 10 $((limit * 2)) "$dir/$name" --test-threads 1 "${skip[@]}" "${only[@]}" 2>&1 | tee "$results/$name.log"
    echo "${PIPESTATUS[0]}" >"$results/$name.status"
done

crab doctor || die "the doctor finds faults after the tests"

scripts/install --uninstall || die "it could not be uninstalled"
left=$(find /usr/local/bin /etc/crab /etc/systemd/system /run/crab/crabd.sock -name '*crab[d.]*' ! -name 'crab-testbed*' 2>/dev/null)
[ -z "$left" ] || die "left by the uninstallation: $left"
! pgrep -x crabd || die "crabd runs on"
grep -q crab /etc/containerd/config.toml && die "containerd's configuration names Crab after the uninstallation"
[ ! -e /etc/docker/daemon.json ] || die "Docker's configuration is there after the uninstallation"
# Each by itself: of several, one that is active will do for systemctl.
for name in containerd docker; do
    systemctl is-active --quiet "$name" || die "$name does not run after the uninstallation"
done

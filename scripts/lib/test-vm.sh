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

# Of some, those alone that a stock kernel, systemd or its cgroups can change: everything takes ten times as long.
declare -A ONLY=(
    # Which calls count with the programs that only a kernel takes whose text may be patched.
    [bpf]="every_change_of_a_watched the_32_bit_entry what_can_write a_call_that_ends_after"
    [lifecycle]="events_come_in_order a_killed_shim the_standard_checkpoint limits_can_be metrics_have"
    [memory]="a_kernel_that_tracks criu_restores"
)
export CRAB_TEST_PROGRAMS=fexit:syscalls CRAB_TEST_KEPT_PINS=/run/crab-test-pins

die() {
    echo "test-vm: $*" >&2
    exit 1
}

# Once: one of the tests has the machine lose its power, and then all of this begins anew on the same disk.
if [ ! -e "$results/installed" ]; then
    scripts/install --bin "$TESTBED_BIN" --containerd --docker || die "it could not be installed"
    crab doctor || die "the doctor finds faults"

    # What the tests are written for (EACH_EXEC_A_TURN), as in the other hosts. Here it matters most: a checkpoint takes
    # seconds, and what an exec does that is let in before the end of it is in it.
    printf '[turns]\nmerge_gap_ms = 0\n[checkpoints]\nmax_gate_ms = 60000\n' >/etc/crab/config.toml
    : >"$results/installed"
fi

for name; do
    [ ! -e "$results/$name.status" ] || continue
    sync
    echo "--- $name (after $SECONDS s)"
    # Names have no spaces. At the end of what it reads, `read' says 1.
    read -r -d '' -a only <<<"${filter:-${ONLY[$name]:-}}" || true
    timeout -k 10 $((limit * 2)) "$dir/$name" --test-threads 1 "${only[@]}" 2>&1 | tee "$results/$name.log"
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

# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# shellcheck disable=SC2034 # variables set here are read in the other files
#
# --vm: a whole machine instead of namespaces. A Debian host with its own stock kernel, systemd, cgroup v2 and the
# daemons as their units start them, under QEMU's software emulation: it needs no virtualisation of the
# processor, and is about ten times slower than the machine. Never for figures of speed.
#
# Owns $CACHE/vmroot-<suite>-<key>, its root, and $CACHE/vm-<suite>-<key>: the kernel, and disk.ext4, made of that root
# and the prepared state of the daemons, the test images imported. No run writes to
# it: QEMU keeps a run's changes in an unlinked file, or a machine that may lose its power has a copy. A second disk holds /src: a copy of the repository without what
# was built, what --with names, and the programs (not installed: that is for CMD to do, as a user would).
# Invariant: as of the other runs: when run_vm returns, no process of the run is left; what SIGKILL leaves on disk the
# next run sweeps away. A machine that hangs is cut off after --limit seconds.

VM_VERSION=1
# What makes a machine of the other root.
VM_PACKAGES=(linux-image-cloud-amd64 systemd-sysv udev dbus initramfs-tools)
# Where in the guest's /src the command, its environment, the programs and what comes back are.
VM_EXCHANGE=.testbed-vm

VM= # the directory, once vm_ensure has returned

vm_root_key() {
    printf '%s\n' "$(root_key)" "${VM_PACKAGES[@]}" | sha256sum | cut -c1-16
}

vm_key() {
    printf '%s\n' "$VM_VERSION" "$(vm_root_key)" "$(state_key)" "$(sha256sum <"$LIB/testbed-vm-boot.service")" |
        sha256sum | cut -c1-16
}

vm_ensure() {
    tool_ensure qemu-system-x86_64 qemu-system-x86
    tool_ensure mke2fs e2fsprogs
    VM=$CACHE/vm-$SUITE-$(vm_key)
    [ -d "$VM" ] && return
    # Not the lock of the other builds: none of them waits for a machine.
    exec {BUILD_LOCK}>"$CACHE/vm.lock"
    flock -n "$BUILD_LOCK" || { note "waiting for another build" && flock "$BUILD_LOCK"; }
    [ -d "$VM" ] || vm_build
    exec {BUILD_LOCK}>&-
}

vm_build() {
    local root tmp=$VM.tmp tree=$VM.tmp/tree unit kernel
    root=$CACHE/vmroot-$SUITE-$(vm_root_key)
    [ -d "$root" ] || root_build "$root" "${ROOT_PACKAGES[@]}" "${VM_PACKAGES[@]}"
    note "making the disk of a $SUITE machine in $VM"
    rm -rf --one-file-system "$tmp"
    mkdir "$tmp"
    # By links: what is changed below is another file afterwards.
    cp -al "$root" "$tree"
    kernel=$(find "$tree/boot" -name 'vmlinuz-*' | sort -V | tail -n 1)
    [ -n "$kernel" ] || die "the $SUITE root has no kernel"
    cp "$kernel" "$tmp/vmlinuz"
    # Disk and file system are built into this kernel: it needs no initrd.
    rm -f "$tree"/boot/initrd.img-*
    # Not the first boot of a new machine, which asks questions, nor the first since an update of /usr.
    rm -f "$tree"/etc/{machine-id,.updated} "$tree/var/.updated"
    # By which a test knows where it is.
    echo 6372616274657374626564000000766d >"$tree/etc/machine-id"
    touch "$tree/etc/.updated" "$tree/var/.updated"
    # Nothing that comes and goes by itself: tests count processes, mounts and cgroups.
    ln -s /dev/null "$tree/etc/systemd/system/timers.target"
    rm -f "$tree"/etc/systemd/system/*.wants/{getty@tty1,e2scrub_reap,systemd-pstore,docker-registry}.service
    cp "$LIB/testbed-vm-boot.service" "$tree/etc/systemd/system/crab-testbed.service"
    ln -s ../crab-testbed.service "$tree/etc/systemd/system/multi-user.target.wants/crab-testbed.service"
    for unit in containerd docker; do
        rm -rf "${tree:?}/var/lib/$unit"
        cp -al "$STATE/$unit" "$tree/var/lib/$unit"
    done
    mkdir -p "$tree/usr/share/crab-testbed/images"
    cp -l "$IMAGES"/*.tar "$tree/usr/share/crab-testbed/images/"
    mke2fs -q -t ext4 -L crab-testbed -d "$tree" -E lazy_itable_init=1,lazy_journal_init=1 "$tmp/disk.ext4" 8G >/dev/null ||
        die "cannot make the disk"
    rm -rf --one-file-system "$tree"
    mv -T "$tmp" "$VM"
    BUILT=1
}

# The disk with /src.
vm_src() {
    local src=$RUN/src name path size
    mkdir -p "$src/$VM_EXCHANGE"/{bin,out}
    tar -C "$REPO" --exclude=./target --exclude=./.testbed --exclude=./.git -cf - . | tar -C "$src" -xf -
    for path in "${WITH[@]}"; do
        path=$(realpath --relative-base="$REPO" -- "$REPO/$path")
        case $path in /*) bad_usage "--with wants a path in the repository" ;; esac
        [ -e "$REPO/$path" ] || die "--with: there is no $REPO/$path"
        mkdir -p "$src/$(dirname "$path")"
        cp -a "$REPO/$path" "$src/$path"
    done
    for name in containerd-shim-crab-v1 crabd crab; do
        [ ! -f "$BIN/$name" ] || cp "$BIN/$name" "$src/$VM_EXCHANGE/bin/$name"
    done
    printf '%s\0' "${PASS[@]}" TESTBED_CGROUP=v2 "TESTBED_BIN=/src/$VM_EXCHANGE/bin" "${CMD[@]}" >"$src/$VM_EXCHANGE/command"
    size=$(du -s --block-size=1M "$src" | cut -f1)
    # Without a journal what `sync' has written is all there, for debugfs to read.
    mke2fs -q -t ext4 -O ^has_journal -d "$src" "$RUN/src.ext4" "$((size * 5 / 4 + 256))M" >/dev/null || die "cannot make the disk of /src"
    rm -rf --one-file-system "$src"
}

# run_vm: runs CMD in a new machine, sets STATUS.
run_vm() {
    local log
    STATUS=0
    run_environment
    run_create
    trap 'run_interrupted 130' INT
    trap 'run_interrupted 143' TERM
    trap 'run_interrupted 129' HUP
    trap run_abandon EXIT
    : >"$RUN/report"
    log=$RUN/upper/var/log
    mkdir -p "$log"
    vm_src
    local root=$VM/disk.ext4 snapshot=on boot
    if [ "$BOOTS" -gt 1 ]; then
        root=$RUN/root.ext4 snapshot=off
        cp --sparse=always --reflink=auto "$VM/disk.ext4" "$root"
    fi
    mkfifo "$RUN/stdout" "$RUN/stderr"
    # Held open here, so that a reader neither waits for QEMU to come nor ends before all has gone.
    local held_out held_err readers=()
    exec {held_out}<>"$RUN/stdout" {held_err}<>"$RUN/stderr"
    cat "$RUN/stdout" {held_out}>&- {held_err}>&- {CACHE_LOCK}>&- {RUN_LOCK}<&- &
    readers+=($!)
    cat "$RUN/stderr" {held_out}>&- {held_err}>&- {CACHE_LOCK}>&- {RUN_LOCK}<&- >&2 &
    readers+=($!)
    for ((boot = 1; boot <= BOOTS; boot++)); do
        STATUS=0
        vm_boot "$root" "$snapshot"
        # Cut off by the limit, or done.
        if [ "$STATUS" != 0 ] || vm_status >/dev/null; then
            break
        fi
        if grep -q 'Kernel panic' "$log/console.log"; then
            STATUS=1
            break
        fi
        [ "$boot" = "$BOOTS" ] || note "the machine has lost its power and is started again"
        # That it was not unmounted is as it should be.
        e2fsck -fp "$RUN/src.ext4" >/dev/null 2>&1 || true
    done
    trap - INT TERM HUP EXIT
    exec {held_out}>&- {held_err}>&-
    # How a reader ended matters to nobody: what it has read is on its way.
    wait "${readers[@]}" || true
    vm_outcome "$log"
    run_destroy "" vm || STATUS=125
}

# vm_boot ROOT SNAPSHOT: from power-on to power-off, however that comes.
vm_boot() {
    # One processor: the kernel patches its own text while it runs, and with several the emulation now and then executes
    # what is patched no more (a panic: "Oops: int3" in __schedule).
    # Nor does it matter how long it takes to boot: --limit ends what hangs.
    # -no-reboot: a panic ends it. Its changes of the disk are in TMPDIR, unlinked, unless it is to be started again.
    (
        exec {CACHE_LOCK}>&- {RUN_LOCK}<&- {held_out}>&- {held_err}>&-
        export TMPDIR=$RUN/tmp
        # If this script is killed, timeout goes with it, and QEMU with that.
        # A machine that is slow anyway comes before what runs beside it: in a session of its own, as the kernel shares
        # processors among sessions first.
        exec setpriv --pdeathsig KILL setsid bash -c 'echo -5 >/proc/self/autogroup; exec nice -n -5 "$@"' qemu \
            timeout --foreground -k 10 "$LIMIT" \
            setpriv --pdeathsig KILL \
            qemu-system-x86_64 -name crab-testbed -nodefaults -no-user-config -display none -no-reboot \
            -machine q35 -accel tcg,thread=single -cpu max -smp 1 -m 3G \
            -kernel "$VM/vmlinuz" -append "root=/dev/nvme0n1 rw console=ttyS0 panic=-1 systemd.getty_auto=no systemd.default_device_timeout_sec=900 systemd.default_timeout_start_sec=900 quiet" \
            -drive "if=none,id=root,file=$1,format=raw,snapshot=$2" -device nvme,drive=root,serial=root \
            -drive "if=none,id=src,file=$RUN/src.ext4,format=raw" -device virtio-blk-pci,drive=src \
            -chardev "file,id=console,path=$log/console.log,append=on" -serial chardev:console \
            -device virtio-serial-pci \
            -chardev "file,id=out,path=$RUN/stdout" -device virtserialport,chardev=out,name=crab.stdout \
            -chardev "file,id=err,path=$RUN/stderr" -device virtserialport,chardev=err,name=crab.stderr \
            >>"$log/qemu.log" 2>&1 </dev/null
    ) &
    UNIT=$!
    wait "$UNIT" || STATUS=$?
    UNIT=
}

# vm_status: the command's, which is on the disk once it has ended.
vm_status() {
    debugfs -R "cat /$VM_EXCHANGE/out/status" "$RUN/src.ext4" 2>/dev/null | grep -x '[0-9]*'
}

# What came back of it: sets STATUS.
vm_outcome() {
    local log=$1 status
    debugfs -R "rdump /$VM_EXCHANGE/out $RUN/tmp" "$RUN/src.ext4" >/dev/null 2>&1 || true
    cp -a "$RUN/tmp/out/log/." "$log/" 2>/dev/null || true
    if status=$(vm_status); then
        STATUS=$status
        return
    fi
    case $STATUS in
        124 | 137) note "the machine was cut off after $LIMIT s (see --limit)" ;;
        *) note "the machine ended with status $STATUS before the command did" ;;
    esac
    tail -n 5 "$log/qemu.log" "$log/console.log" >&2 || true
    STATUS=125
}

#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# In the test machine: runs the command with its output on the two ports that the other side reads, and leaves its status
# and the logs in /src, which the other side reads when the machine is off.

set -uo pipefail

exchange=/src/.testbed-vm
out=$exchange/out

exec >/dev/virtio-ports/crab.stdout 2>/dev/virtio-ports/crab.stderr

mapfile -d '' -t command <"$exchange/command"
cd /src || exit
env -i "${command[@]}" </dev/null
echo $? >"$out/status"

journalctl --no-pager -o short-monotonic >/var/log/journal.log 2>/dev/null
rm -rf /var/log/journal
cp -a /var/log "$out/log"
sync
# The ports are read a little behind.
exec >&- 2>&-
sleep 0.5

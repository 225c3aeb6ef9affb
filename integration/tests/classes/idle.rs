// SPDX-License-Identifier: Apache-2.0

//! Servers that wake by themselves: what counts is whether they are others afterwards.

use anyhow::{Result, ensure};
use crab_integration::{DEBIAN, RunOptions, Testbed};
use crab_store::Class;

/// Wakes ten times a second, finds nothing to do, and counts nothing but signals.
const WAKES: &str = r"
#include <poll.h>
#include <signal.h>
static volatile int count;
static void add(int signal) { count++; }
int main(void) {
    signal(SIGUSR1, add);
    for (;;) poll(0, 0, 100);
}
";

/// So long that it has woken meanwhile.
const WHILE_IT_WAKES: &str = "sleep 0.35";

#[test]
fn a_server_that_merely_wakes_is_unchanged_and_one_whose_counter_moved_is_not() -> Result<()> {
    let testbed = Testbed::here()?;
    let crab = testbed.crab();
    for client in testbed.clients() {
        let sandbox = client.run(DEBIAN, RunOptions::new())?;
        sandbox.sh_ok(&format!(
            "cat >/root/wakes.c <<'END'\n{WAKES}END\ncc -o /root/wakes /root/wakes.c"
        ))?;
        // 7 is poll.
        let start = "setsid /root/wakes </dev/null >/dev/null 2>&1 & echo $! >/root/pid; \
                     until grep -qs '^7 ' /proc/$!/syscall; do :; done";
        crab.turn_of(&sandbox, Class::Full, start)?;
        // A dump interrupts its call, after which it may wake before it is looked at again, and
        // then that dump is not taken for one of it as it waits.
        let settled = (0..5).any(|_| {
            let turn = crab.turn(&sandbox, &["sh", "-c", WHILE_IT_WAKES]);
            turn.is_ok_and(|(_, turn)| turn.class() == Class::None)
        });
        ensure!(settled, "it never counts as unchanged");
        for _ in 0..3 {
            crab.turn_of(&sandbox, Class::None, WHILE_IT_WAKES)?;
        }
        crab.turn_of(&sandbox, Class::Files, "sleep 0.35; echo x >/root/x")?;
        let count = "kill -USR1 $(cat /root/pid); sleep 0.35";
        let counted = crab.turn_of(&sandbox, Class::Processes, count)?;
        let reason = &counted.record.reason;
        assert!(reason.contains("(wakes) changed"), "{reason}");
    }
    Ok(())
}

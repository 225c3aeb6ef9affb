// SPDX-License-Identifier: Apache-2.0

//! An init that is more than a `sleep`, and a process of which no image can be made.

use std::{fs, thread, time::Duration};

use anyhow::{Context, Result};
use crab_integration::{
    BUSYBOX, Client, DEBIAN, RunOptions, Testbed, Tool, poll, processes, sleeper,
};
use crab_store::Class;
use rustix::process::Signal;

use crate::LIMIT;

#[test]
fn an_init_that_works_is_a_process_like_any_other() -> Result<()> {
    let testbed = Testbed::here()?;
    let crab = testbed.crab();
    let init = "import signal, time\n\
                n = 0\n\
                def count(*_):\n    global n\n    n += 1\n\
                signal.signal(signal.SIGUSR1, count)\n\
                while True: signal.pause()";
    for client in testbed.clients() {
        let options = RunOptions::without_bytecode().args(["python3", "-c", init]);
        let sandbox = client.run(DEBIAN, options)?;
        let is_in = format!("/proc/{}/syscall", sandbox.pid()?);
        poll("it waits for its signal", LIMIT, || {
            // 34 is pause.
            Ok(fs::read_to_string(&is_in)?.starts_with("34 ").then_some(()))
        })?;
        let (_, first) = crab.turn(&sandbox, &["true"])?;
        // It has begun since the checkpoint before its start.
        assert_eq!(first.class(), Class::Processes, "{}", first.record.reason);
        assert_eq!(first.record.degraded, None);
        crab.turn_of(&sandbox, Class::None, "true")?;
        // To the end of what it does about it.
        let counts = "kill -USR1 1; until grep -q '^34 ' /proc/1/syscall; do :; done";
        crab.turn_of(&sandbox, Class::Processes, counts)?;
        crab.turn_of(&sandbox, Class::None, "true")?;
        crab.turn_of(&sandbox, Class::Files, "echo x >/root/x")?;
    }
    Ok(())
}

/// Counts what it is told, under a name that promises nothing of the kind.
const SLEEPER_THAT_COUNTS: &str = "#include <signal.h>
#include <unistd.h>
static volatile int told;
static void count(int signal) { told++; }
int main(void) {
    signal(SIGUSR1, count);
    for (;;) pause();
}";

#[test]
fn an_init_that_is_only_called_sleep_is_not_taken_for_one() -> Result<()> {
    let testbed = Testbed::here()?;
    let crab = testbed.crab();
    let shared = tempfile::tempdir()?;
    for client in testbed.clients() {
        let options = || RunOptions::new().bind(client, shared.path(), "/shared");
        let maker = client.run(DEBIAN, options())?;
        let make = format!("cat >/shared/sleep.c <<'C'\n{SLEEPER_THAT_COUNTS}\nC\n");
        maker.sh_ok(&format!("{make}gcc -O1 -o /shared/sleep /shared/sleep.c"))?;

        let sandbox = client.run(DEBIAN, options().args(["/shared/sleep", "900"]))?;
        crab.turn_of(&sandbox, Class::None, "true")?;
        let tell = "kill -USR1 1; until grep -q '^34 ' /proc/1/syscall; do :; done";
        let told = crab.turn_of(&sandbox, Class::Processes, tell)?;
        let reason = &told.record.reason;
        assert!(
            reason.contains("more than hold the container open"),
            "{reason}"
        );
        assert_eq!(told.record.degraded, None);
        crab.turn_of(&sandbox, Class::None, "true")?;
        crab.turn_of(&sandbox, Class::Files, "echo x >/root/x")?;
        // What the image holds of it is not forgotten when that comes back.
        let restored = crab.rollback(&sandbox, told.record.turn.0)?;
        assert_eq!(restored["processes"], true, "{restored}");
        crab.turn_of(&sandbox, Class::None, "true")?;
        crab.turn_of(&sandbox, Class::Processes, tell)?;
    }
    Ok(())
}

/// Takes its time until it waits.
const SLEEPER_THAT_BEGINS_LATE: &str = "#include <unistd.h>
int main(void) {
    while (access(\"/shared/go\", F_OK)) ;
    for (;;) pause();
}";
/// Longer than the init of a container is waited for while something else is to happen.
const SLOW: Duration = Duration::from_millis(2500);

#[test]
fn an_init_that_comes_to_rest_late_is_waited_for_as_long_as_nothing_happens() -> Result<()> {
    let testbed = Testbed::here()?;
    let crab = testbed.crab();
    let shared = tempfile::tempdir()?;
    let ctr = testbed.ctr();
    let options = || RunOptions::new().bind(ctr, shared.path(), "/shared");
    let maker = ctr.run(DEBIAN, options())?;
    let make = format!("cat >/shared/sleep.c <<'C'\n{SLEEPER_THAT_BEGINS_LATE}\nC\n");
    maker.sh_ok(&format!("{make}gcc -O1 -o /shared/sleep /shared/sleep.c"))?;

    let sandbox = ctr.run(DEBIAN, options().args(["/shared/sleep", "900"]))?;
    thread::sleep(SLOW);
    fs::write(shared.path().join("go"), "")?;
    let init = format!("/proc/{}", sandbox.pid()?);
    let is_in = format!("{init}/syscall");
    poll("it waits", LIMIT, || {
        // 34 is pause.
        Ok(fs::read_to_string(&is_in)?.starts_with("34 ").then_some(()))
    })?;
    // The look wakes it.
    let ran = || fs::read_to_string(format!("{init}/schedstat"));
    let before = ran()?;
    poll("it is looked at", LIMIT, || {
        Ok((ran()? != before).then_some(()))
    })?;
    thread::sleep(Duration::from_millis(500));
    for class in [Class::None, Class::Files, Class::None] {
        let script = match class {
            Class::Files => "echo x >/root/x",
            _ => "true",
        };
        let turn = crab.turn_of(&sandbox, class, script)?;
        assert_eq!(turn.record.degraded, None);
    }
    Ok(())
}

#[test]
fn an_init_that_wakes_up_and_goes_on_waiting_needs_no_image() -> Result<()> {
    let testbed = Testbed::here()?;
    let crab = testbed.crab();
    // Which tail looks each second at what it follows, and so does its init.
    let follow = ["tail", "-f", "/dev/null"];
    for client in testbed.clients() {
        let mut options = RunOptions::new().args(follow);
        if client == Client::Docker {
            options = options.flags(["--init"]);
        }
        let sandbox = client.run(DEBIAN, options)?;
        crab.turn_of(&sandbox, Class::None, "sleep 1.1")?;
        // A dump breaks off what it waits in.
        crab.turn_of(&sandbox, Class::Processes, &sleeper(1000))?;
        crab.turn_of(&sandbox, Class::None, "sleep 1.1")?;
        crab.turn_of(&sandbox, Class::None, "true")?;
        // Adopted by the init, and the same command as the one that it was started with.
        let another = "setsid tail -f /dev/null </dev/null >/dev/null 2>&1 & \
                       until grep -qs '^230 ' /proc/$!/syscall; do :; done";
        crab.turn_of(&sandbox, Class::Processes, another)?;
    }
    Ok(())
}

/// Traces a process, which it does not stop, for as long as a file is there that it makes.
const TRACER: &str = "import ctypes, os, sys, time
seize, pid, begun = 0x4206, int(sys.argv[1]), sys.argv[2]
if ctypes.CDLL(None, use_errno=True).ptrace(seize, pid, None, None):
    sys.exit(os.strerror(ctypes.get_errno()))
open(begun, 'w').close()
while os.path.exists(begun): time.sleep(0.01)";

#[test]
fn a_look_at_the_init_that_comes_to_nothing_is_a_matter_of_one_turn() -> Result<()> {
    let testbed = Testbed::here()?;
    let crab = testbed.crab();
    let dir = tempfile::tempdir()?;
    let options = RunOptions::new().args(["sleep", "900"]);
    let sandbox = testbed.ctr().run(BUSYBOX, options)?;
    crab.turn_of(&sandbox, Class::None, "true")?;

    let init = sandbox.pid()?;
    processes::signal(init, Signal::STOP)?;
    poll("it is stopped", LIMIT, || {
        Ok(processes::is_stopped(init).then_some(()))
    })?;
    processes::signal(init, Signal::CONT)?;
    let traced = dir.path().join("traced");
    let words = [&init.to_string(), traced.to_str().context("its name")?];
    let tracer = Tool::new("python3").args(["-c", TRACER]).args(words);
    let tracer = tracer.start()?;
    poll("it is traced", LIMIT, || Ok(traced.exists().then_some(())))?;
    let unseen = crab.turn_of(&sandbox, Class::Processes, "true")?;
    let reason = &unseen.record.reason;
    assert!(reason.contains("was not seen"), "{reason}");
    // A dump would end it.
    let degraded = unseen.record.degraded.unwrap_or_default();
    assert!(degraded.contains("busybox sleep"), "{degraded}");
    fs::remove_file(&traced)?;
    tracer.wait()?.ok()?;

    let seen = crab.turn_of(&sandbox, Class::Processes, "true")?;
    assert_eq!(seen.record.degraded, None, "{}", seen.record.reason);
    crab.turn_of(&sandbox, Class::None, "true")?;
    let turn = crab.turn_of(&sandbox, Class::Files, "echo x >/root/x")?;
    assert_eq!(turn.record.degraded, None);
    let restored = crab.rollback(&sandbox, turn.record.turn.0)?;
    assert_eq!(restored["processes"], false, "{restored}");
    Ok(())
}

#[test]
fn a_process_that_cannot_be_dumped_is_said_and_files_are_kept() -> Result<()> {
    let testbed = Testbed::here()?;
    let crab = testbed.crab();
    for client in testbed.clients() {
        let sandbox = client.run(BUSYBOX, RunOptions::new())?;
        // A dump would end it.
        let script = format!("echo x >/root/x; {}", sleeper(1000));
        let turn = crab.turn_of(&sandbox, Class::Full, &script)?;
        let degraded = turn.record.degraded.unwrap_or_default();
        assert!(degraded.contains("busybox sleep"), "{degraded}");
        assert!(turn.published);
        assert_eq!(sandbox.processes()?.len(), 2);
        let restored = crab.rollback(&sandbox, turn.record.turn.0)?;
        assert_eq!(restored["processes"], false);
        assert_eq!(sandbox.sh_ok("cat /root/x")?, "x");
    }
    Ok(())
}

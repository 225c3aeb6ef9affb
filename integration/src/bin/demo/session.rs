// SPDX-License-Identifier: Apache-2.0

//! The agent's session: what it does, turn by turn, and which class each turn has
//! to get. Every class is known beforehand, from what the command does.

use crab_store::Class;

/// One turn of the session.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Step {
    /// What it is, for people.
    pub(crate) what: &'static str,
    /// What bash runs.
    pub(crate) script: &'static str,
    /// The exit status that it ends with.
    pub(crate) exit: i32,
    /// What it has to print, if that matters: its lines, with commas between.
    pub(crate) prints: Option<&'static str>,
    /// The class that it has to get.
    pub(crate) class: Class,
}

const fn step(what: &'static str, class: Class, script: &'static str) -> Step {
    Step {
        what,
        script,
        exit: 0,
        prints: None,
        class,
    }
}

impl Step {
    const fn exits(mut self, exit: i32) -> Self {
        self.exit = exit;
        self
    }

    const fn prints(mut self, text: &'static str) -> Self {
        self.prints = Some(text);
        self
    }
}

/// The server that counts its requests in memory, and only there, and who asks it. The
/// agent gets it wrong at first.
const WRITE_SERVER: &str = concat!(
    "mkdir -p /root/app && cd /root/app\n",
    "sed 's/count += 1$/count += 100/' >counter.py <<'END'\n",
    include_str!("../../counter/server.py"),
    "END\ncat >ask.py <<'END'\n",
    include_str!("../../counter/ask.py"),
    "END",
);

// `-B`: Python would cache what it compiles, and the turn would change files. The
// turn ends when the server answers.
const START_SERVER: &str =
    "setsid python3 -B /root/app/counter.py first </dev/null >/dev/null 2>&1 &
python3 -B /root/app/ask.py first hello";
const START_SECOND: &str =
    "setsid python3 -B /root/app/counter.py second </dev/null >/dev/null 2>&1 &
python3 -B /root/app/ask.py second hello";

const ASK: &str = "python3 -B /root/app/ask.py first count";
const ASK_SECOND: &str = "python3 -B /root/app/ask.py second count";

// The container's init never waits for the orphan: it stays as a zombie.
const KILL_SERVER: &str = "pkill -x python3
while ps -o stat= -C python3 | grep -qv Z; do sleep 0.02; done";

const COMPILE: &str = r#"cd /root/app
printf '#include <stdio.h>\nint main(void) { puts("hello"); return 0; }\n' >hello.c
gcc -O1 -o hello hello.c && ./hello"#;

// A commit starts git's maintenance in the background, which may or may not be over when
// the turn is.
const COMMIT: &str = "cd /root/app && git init -q . && git config maintenance.auto false &&
git add . && git -c user.name=agent -c user.email=agent@localhost commit -q -m 'count requests'";

/// How the sandbox was when the counter was 2, looked at without changing it.
const LOOK_AT_TWO: &str =
    "cat /dev/shm/plan && stat -c %a /root/app/hello && git -C /root/app log --format=%s &&
test -d /usr/share/git-core/templates && pgrep -c -x python3";

/// The turn in which the server's counter became 2, by its place in [`SESSION`].
pub(crate) const COUNTER_IS_TWO: usize = 11;

/// The session.
pub(crate) const SESSION: [Step; 19] = [
    step("list files", Class::None, "ls -la / /root"),
    step("read a file", Class::None, "cat /etc/passwd"),
    step("write a file", Class::Files, WRITE_SERVER),
    step(
        "edit it with sed",
        Class::Files,
        "sed -i 's/count += 100/count += 1/' /root/app/counter.py",
    ),
    step(
        "make and delete a temporary file",
        Class::None,
        "t=$(mktemp) && seq 1000 >$t && sort -r $t | head -n 1 && rm $t",
    )
    .prints("999"),
    step("git init and commit", Class::Files, COMMIT),
    step("compile C and run it", Class::Files, COMPILE).prints("hello"),
    step("a command that fails", Class::None, "cat /no/such/file").exits(1),
    step("start a server", Class::Processes, START_SERVER),
    step(
        "write into /dev/shm",
        Class::Files,
        "echo first >/dev/shm/plan",
    ),
    step("ask the server", Class::Processes, ASK).prints("1"),
    step("ask the server", Class::Processes, ASK).prints("2"),
    step("ask the server", Class::Processes, ASK).prints("3"),
    step(
        "write into /dev/shm again",
        Class::Files,
        "echo second >/dev/shm/plan",
    ),
    step("kill the server", Class::Processes, KILL_SERVER),
    step(
        "remove a directory tree",
        Class::Files,
        "rm -r /usr/share/git-core /root/app/.git",
    ),
    step("chmod only", Class::Files, "chmod 700 /root/app/hello"),
    step(
        "read a lot",
        Class::None,
        "cat /usr/bin/* /usr/lib/x86_64-linux-gnu/*.so* 2>/dev/null | wc -c; find / -xdev | wc -l",
    ),
    step("look around", Class::None, "ps ax; ls /dev/shm /root/app"),
];

/// The session after the first rollback. The second server is started by an exec in
/// a sandbox whose init CRIU has restored, and has to be in the next image.
pub(crate) const AFTER_ROLLBACK: [Step; 6] = [
    step("the files are those of that turn", Class::None, LOOK_AT_TWO)
        .prints("first, 755, count requests, 1"),
    step("ask the server", Class::Processes, ASK).prints("3"),
    step("start a second server", Class::Processes, START_SECOND),
    step("ask the second server", Class::Processes, ASK_SECOND).prints("1"),
    step(
        "write files",
        Class::Files,
        "echo third >/dev/shm/plan && echo todo >/root/app/TODO",
    ),
    step("ask the second server", Class::Processes, ASK_SECOND).prints("2"),
];

/// The turn to go back to from there, by its place in [`AFTER_ROLLBACK`].
pub(crate) const SECOND_TARGET: usize = 3;

/// The session after the second rollback.
pub(crate) const AFTER_SECOND: [Step; 4] = [
    step(
        "the files are those of that turn",
        Class::None,
        "cat /dev/shm/plan && test ! -e /root/app/TODO && echo none",
    )
    .prints("first, none"),
    step("ask the server", Class::Processes, ASK).prints("4"),
    step("ask the second server", Class::Processes, ASK_SECOND).prints("2"),
    step(
        "write a file",
        Class::Files,
        "echo before the crash >/root/app/NOTES",
    ),
];

/// What the sandbox has to be like after the crash.
pub(crate) const AFTER_CRASH: [Step; 3] = [
    step(
        "the files are the newest",
        Class::None,
        "cat /root/app/NOTES /dev/shm/plan",
    )
    .prints("before the crash, first"),
    step("ask the server", Class::Processes, ASK).prints("5"),
    step("ask the second server", Class::Processes, ASK_SECOND).prints("3"),
];

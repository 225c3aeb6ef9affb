// SPDX-License-Identifier: Apache-2.0

//! How an agent gives its commands to a sandbox.
//!
//! ```text
//! exec    one exec for each command
//! shell   one shell that lives as long as the run: under Docker it is the container's program,
//!         and reads what a client that stays attached says; under containerd it reads a FIFO in
//!         the sandbox, to which an exec writes each command, as ctr cannot attach again
//! tmux    one terminal inside that lives as long as the run; an exec presses the keys, and waits
//! ```
//! Each goes through the client's own program. A command is the same text in all of them, with
//! what a run has to have alike before it ([`Script`]).

use std::{
    sync::Mutex,
    time::{Duration, SystemTime},
};

use anyhow::{Context, Result, bail};
use serde::Deserialize;

use crate::{
    client::{Client, RunOptions, Runtime, unique},
    sandbox::{ExecOptions, Sandbox},
    session::Session,
    testbed::{DEBIAN, Testbed, poll},
    traces::{Trace, TraceTurn},
};

/// For how long a command may run where its agent had no limit of its own, in seconds.
const LIMIT: u64 = 120;
/// For how long one of the setup may.
const SETUP_LIMIT: Duration = Duration::from_secs(180);
/// How a process ends by SIGKILL.
const KILLED: i32 = 137;
/// Where the FIFOs of a shell are, in the sandbox.
const DESK: &str = "/var/tmp/agent";
/// Begins that shell, if it is not there. It holds both ends of what it reads, which so has no
/// end.
const SHELL: &str = r#"mkdir -p /var/tmp/agent && cd /var/tmp/agent || exit
for process in /proc/[0-9]*; do
    [ "$(readlink "$process/fd/0" 2>/dev/null)" = /var/tmp/agent/say ] && exit
done
rm -f say done && mkfifo say done || exit
cd / || exit
setsid bash --norc <>/var/tmp/agent/say >/dev/null 2>&1 &
until [ "$(readlink "/proc/$!/fd/0")" = /var/tmp/agent/say ]; do :; done"#;
/// Begins a terminal, if it is not there.
const TERMINAL: &str = "tmux has-session -t agent 2>/dev/null || \
     tmux new-session -d -s agent -x 200 -y 50 'bash --norc'";

/// So that two runs do not differ by the day: git writes it into what it names by a hash. And as
/// agents have it: at a terminal git would start a pager.
const ALIKE: [&str; 8] = [
    "TZ=UTC",
    "PAGER=cat",
    "GIT_PAGER=cat",
    // Its own housekeeping is over with the command that caused it.
    "GIT_CONFIG_COUNT=1",
    "GIT_CONFIG_KEY_0=gc.autoDetach",
    "GIT_CONFIG_VALUE_0=false",
    "GIT_AUTHOR_DATE=2026-01-02T03:04:05+0000",
    "GIT_COMMITTER_DATE=2026-01-02T03:04:05+0000",
];

/// Runs a command for as long as its agent waits for it, and what is to be done after it; leaves
/// with the status of the command. The arguments are the directory, the limit, the shell, the
/// command, and what comes after.
const TURN: &str = r#"cd -- "$1" || exit 127
timeout --foreground -s KILL "$2" "$3" -c "$4"
status=$?
[ -z "$5" ] || sh -c "$5" </dev/null >/dev/null 2>&1
exit $status"#;

/// A way to give commands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Driver {
    /// An exec each.
    #[default]
    Exec,
    /// One shell for all.
    Shell,
    /// One terminal for all.
    Tmux,
}

impl Driver {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Exec, Self::Shell, Self::Tmux];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Exec => "exec",
            Self::Shell => "shell",
            Self::Tmux => "tmux",
        }
    }

    /// Whether the container's program is the shell that is driven.
    fn is_the_program(self, client: Client) -> bool {
        self == Self::Shell && client == Client::Docker
    }
}

/// One trace, and how it is played.
#[derive(Clone, Debug)]
pub struct Part {
    /// The run.
    pub trace: Trace,
    /// By whom the container is made.
    pub client: Client,
    /// How its commands are given.
    pub driver: Driver,
    /// What the agent's own limits are multiplied by: a program that hangs hangs in less
    /// time, too.
    pub patience: f64,
}

impl Part {
    /// What tells it from others: the trace, and who plays it.
    pub fn name(&self) -> String {
        format!("{} ({})", self.trace.id, self.client_name())
    }

    /// `containerd` or `docker`.
    pub fn client_name(&self) -> &'static str {
        match self.client {
            Client::Ctr { .. } => "containerd",
            Client::Docker => "docker",
        }
    }

    /// How its container is made, under a shim.
    pub fn options(&self, testbed: &Testbed, runtime: Runtime) -> RunOptions {
        let mut options = RunOptions::new().runtime(runtime);
        if self.driver.is_the_program(self.client) {
            options = options.flags(["-i"]).args(["bash"]);
        }
        self.trace.bounded(options, self.client, testbed)
    }

    /// A fresh container.
    pub fn start(&self, testbed: &Testbed, runtime: Runtime) -> Result<Sandbox> {
        self.client.run(DEBIAN, self.options(testbed, runtime))
    }

    /// A turn as it is given to a shell, counted from 0, with what comes after.
    fn words(&self, n: usize, after: &str) -> Result<(Vec<String>, &TraceTurn)> {
        let turn = self.trace.turns.get(n);
        let turn = turn.with_context(|| format!("{} has no turn {}", self.trace.id, n + 1))?;
        let cwd = self.trace.cwd.to_str().context("a path that is no text")?;
        let mut words: Vec<String> = ["env"].iter().chain(&ALIKE).map(|&w| w.into()).collect();
        words.extend(["sh", "-c", TURN, "turn", cwd].map(str::to_owned));
        words.extend([
            format!("{:.1}", self.limit().as_secs_f64()),
            self.trace.shell.name().to_owned(),
            turn.command.clone(),
            after.to_owned(),
        ]);
        Ok((words, turn))
    }

    fn limit(&self) -> Duration {
        let limit = self.trace.agent_timeout_ms.map(Duration::from_millis);
        let limit = limit.unwrap_or(Duration::from_secs(LIMIT));
        limit.mul_f64(self.patience)
    }
}

/// A turn that was played.
#[derive(Clone, Copy, Debug)]
pub struct Done {
    /// Right before it was given.
    pub began: SystemTime,
    /// The exit status of its command.
    pub exit: i32,
}

impl Done {
    /// Whether its agent lost patience and killed it.
    pub fn was_killed(&self) -> bool {
        self.exit == KILLED
    }
}

/// Who gives the commands of a trace to a sandbox.
pub struct Hand<'a> {
    part: &'a Part,
    sandbox: &'a Sandbox,
    /// To a shell that is the container's program.
    attached: Option<Mutex<Session>>,
}

impl<'a> Hand<'a> {
    /// Makes what the agent found, and the shell or terminal that it works in.
    pub fn set_up(part: &'a Part, sandbox: &'a Sandbox) -> Result<Self> {
        for (n, script) in part.trace.setup.iter().enumerate() {
            let mut words = vec!["env"];
            words.extend(ALIKE);
            words.extend([part.trace.shell.name(), "-c", script]);
            let limit = ExecOptions::new().limit(SETUP_LIMIT);
            let made = sandbox.exec_with(&words, &limit).and_then(|said| said.ok());
            made.with_context(|| format!("setup {} of {}", n + 1, part.trace.id))?;
        }
        Self::take_up(part, sandbox)
    }

    /// Goes on with what there is; a shell or a terminal that is gone is begun anew.
    pub fn take_up(part: &'a Part, sandbox: &'a Sandbox) -> Result<Self> {
        let is_program = part.driver.is_the_program(part.client);
        match part.driver {
            Driver::Shell if !is_program => drop(sandbox.sh_ok(SHELL)?),
            Driver::Tmux => drop(sandbox.sh_ok(TERMINAL)?),
            _ => {}
        }
        Self::on(part, sandbox)
    }

    /// Goes on with what there is for certain.
    pub(super) fn on(part: &'a Part, sandbox: &'a Sandbox) -> Result<Self> {
        let is_program = part.driver.is_the_program(part.client);
        let attach = || {
            let attach = ["attach", "--sig-proxy=false", sandbox.name()];
            Session::start(&sandbox.client().tool(attach)).map(Mutex::new)
        };
        Ok(Self {
            part,
            sandbox,
            attached: is_program.then(attach).transpose()?,
        })
    }

    /// Plays a turn, counted from 0, and what comes after it in the same one.
    pub fn turn(&self, n: usize, after: &str) -> Result<Done> {
        let (words, turn) = self.part.words(n, after)?;
        let began = SystemTime::now();
        let exit = match (self.part.driver, &self.attached) {
            (Driver::Exec, _) => self.exec(&words, turn.stdin.as_deref().unwrap_or_default()),
            (Driver::Shell, Some(session)) => {
                let mut session = session.lock().unwrap_or_else(|broken| broken.into_inner());
                self.say(&mut session, &line(&words, turn))
            }
            (Driver::Shell, None) => {
                let ask = format!("cat >{DESK}/say; read -r status <{DESK}/done; exit \"$status\"");
                let line = format!("{}; echo $? >{DESK}/done\n", line(&words, turn));
                self.exec(&["sh".into(), "-c".into(), ask], &line)
            }
            (Driver::Tmux, _) => {
                let ask = "tmux load-buffer -b turn - && tmux send-keys -t agent \
                           'eval \"$(tmux show-buffer -b turn)\"' Enter && tmux wait-for turn && \
                           exit \"$(tmux show-environment -g TURN | cut -d= -f2)\"";
                let line = format!(
                    "{}; tmux set-environment -g TURN $?; tmux wait-for -S turn",
                    line(&words, turn)
                );
                self.exec(&["sh".into(), "-c".into(), ask.into()], &line)
            }
        };
        let exit = exit.with_context(|| format!("turn {} of {}", n + 1, self.part.name()))?;
        Ok(Done { began, exit })
    }

    fn exec(&self, words: &[String], stdin: &str) -> Result<i32> {
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let limit = self.part.limit() + SETUP_LIMIT;
        let options = ExecOptions::new().stdin(stdin).limit(limit);
        let said = self.sandbox.exec_with(&words, &options)?;
        // What a client says of itself is no status of a command.
        let of_client = [
            "ctr: ",
            "Error response from daemon",
            "OCI runtime exec failed",
        ];
        let failed = |word: &&str| said.status != 0 && said.stderr.starts_with(*word);
        if of_client.iter().any(failed) {
            bail!("{}", said.stderr.trim());
        }
        Ok(said.status)
    }

    /// Says a line to a shell, and waits for the status that it gives back.
    fn say(&self, session: &mut Session, line: &str) -> Result<i32> {
        let mark = unique("turn-over-");
        session.send(&format!("{line}; echo \"{mark} $?\"\n"))?;
        let limit = self.part.limit() + SETUP_LIMIT;
        let status = poll("the shell has done it", limit, || {
            let seen = session.seen();
            let told = seen.rsplit_once(&format!("{mark} ")).map(|(_, told)| told);
            Ok(told.and_then(|told| told.split_once('\n')?.0.parse().ok()))
        });
        status.with_context(|| format!("it said {:?}", session.seen()))
    }
}

/// A command as a line for a shell.
fn line(words: &[String], turn: &TraceTurn) -> String {
    let words: Vec<String> = words.iter().map(|word| quoted(word)).collect();
    let command = words.join(" ");
    match &turn.stdin {
        Some(text) => format!("printf %s {} | {command}", quoted(text)),
        None => format!("{command} </dev/null"),
    }
}

/// A word that a shell takes as it is.
fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

// SPDX-License-Identifier: Apache-2.0

//! The ways in which agents drive a sandbox, played by real clients; and where Crab
//! then ended the turns.
//!
//! Each step changes a file of its own (but for a database) and says, by the sandbox's clock, when it was
//! done. So the truth is known from the outside: how many turns there have to be, which step
//! is in which, and how long after its end each turn was looked at.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use crate::{
    Client, Crab, DEBIAN, ExecOptions, RunOptions, Sandbox, Session, Terminal, Testbed, Tool, Turn,
    testbed::poll,
};

/// How long a turn that has to come may take, and one that must not come has.
const LIMIT: Duration = Duration::from_secs(30);

/// A way in which an agent drives a sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    /// One exec for each command.
    Execs,
    /// Three execs at once, again and again.
    ExecsAtOnce,
    /// A long-lived shell, by an exec with a stdin and no terminal.
    ShellByPipe,
    /// A shell as the container's program, at a terminal: `docker run -it`.
    ShellAtTerminal,
    /// tmux inside; keys and a look at the screen by execs.
    Tmux,
    /// A Python REPL behind a pipe.
    Python,
    /// A Python REPL at a terminal, with line editing.
    PythonAtTerminal,
    /// SQLite's shell behind a pipe.
    Sqlite,
    /// A build that runs on in the background of a shell.
    Background,
    /// Commands that print slowly.
    SlowPrinter,
    /// Commands that ask: "Continue? [y/N]".
    Asks,
    /// An agent that an exec began, and that only waits for its model.
    AgentInside,
    /// An agent that is the container's program.
    AgentAsProgram,
}

impl Style {
    /// All of them.
    pub const ALL: [Self; 13] = [
        Self::Execs,
        Self::ExecsAtOnce,
        Self::ShellByPipe,
        Self::ShellAtTerminal,
        Self::Tmux,
        Self::Python,
        Self::PythonAtTerminal,
        Self::Sqlite,
        Self::Background,
        Self::SlowPrinter,
        Self::Asks,
        Self::AgentInside,
        Self::AgentAsProgram,
    ];

    /// Whether its turns end with execs; if not, by stdio.
    pub fn is_by_execs(self) -> bool {
        matches!(self, Self::Execs | Self::ExecsAtOnce | Self::Tmux)
    }
}

/// Where the turns of a style ended.
#[derive(Debug, Default)]
pub struct Boundaries {
    /// How many there had to be.
    pub expected: usize,
    /// What was wrong with them, a line each: too many, too few, at the wrong place.
    pub errors: Vec<String>,
    /// How long after the end of what was done each turn was looked at, in milliseconds.
    pub delays_ms: Vec<f64>,
}

/// Who is told something.
enum Told {
    Nobody,
    Pipe(Session),
    Terminal(Terminal),
}

struct Play<'a> {
    crab: &'a Crab,
    sandbox: Sandbox,
    told: Told,
    /// The newest turn that was waited for.
    last: u64,
    found: Boundaries,
}

/// Plays a style for so many steps.
pub fn play(testbed: &Testbed, client: Client, style: Style, steps: usize) -> Result<Boundaries> {
    let crab = testbed.crab();
    let mut play = Play::begin(&crab, client, style)?;
    for step in 1..=steps {
        play.step(style, step)
            .with_context(|| format!("{style:?} by {}, step {step}", client.name()))?;
    }
    let all = crab.last_turn(&play.sandbox)?.unwrap_or_default();
    if all != play.last {
        let more = format!("{style:?}: turns up to {all}, and not {}", play.last);
        play.found.errors.push(more);
    }
    Ok(play.found)
}

/// The command line of an exec that stays attached.
fn attached(sandbox: &Sandbox, words: &[&str]) -> Tool {
    sandbox.exec_tool(words, &ExecOptions::new().stdin(""))
}

/// The milliseconds after the last "end-" that is followed by digits and a line's end.
fn end_in(text: &str, number: usize) -> Option<f64> {
    let mut ends = text.split("end-").skip(1).filter_map(|rest| {
        let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
        (digits.len() == 13 && rest.len() > 13).then(|| digits.parse().ok())?
    });
    ends.nth(number - 1)
}

/// For how long an agent inside has to wait for its model, in milliseconds, until that is a turn's
/// end; ten times that is what it has to have lived.
const QUIET: u64 = 200;

/// A model that answers after a while, to one client after the other.
const MODEL: &str = "
import select, socket
server = socket.create_server(('127.0.0.1', 7000))
while True:
    client, _ = server.accept()
    client.recv(1)
    select.select([server], [], [], 3)
    client.sendall(b'!')
    client.close()
";

/// An agent: it asks, and does what it is told.
const AGENT: &str = "
import socket, time
time.sleep(2.2)
step = 0
while True:
    try:
        model = socket.create_connection(('127.0.0.1', 7000))
    except OSError:
        time.sleep(0.05)
        continue
    print('end-%d' % (time.time() * 1000), flush=True)
    model.sendall(b'?')
    model.recv(1)
    model.close()
    for _ in range(1000000):
        pass
    step += 1
    open('/root/step-%d' % step, 'w').close()
";

/// So that what a terminal echoes is not what the command prints.
const SAY_END: &str = "date +e''nd-%s%3N";

impl<'a> Play<'a> {
    fn begin(crab: &'a Crab, client: Client, style: Style) -> Result<Self> {
        // The default, but several execs of one step may be as slow as a busy machine
        // makes them.
        let gap = match style {
            Style::Tmux | Style::ExecsAtOnce => 1000,
            _ => 150,
        };
        let gap = format!("dev.crab.turns.merge_gap_ms={gap}");
        let quiet = format!("dev.crab.turns.quiet_ms={QUIET}");
        let said = ["--annotation", &gap, "--annotation", &quiet];
        let options = match style {
            Style::AgentAsProgram => RunOptions::new().args(["python3", "-c", AGENT]),
            _ => RunOptions::new(),
        };
        let options = options.flags(said);
        if matches!(style, Style::ShellAtTerminal | Style::PythonAtTerminal) {
            let program = match style {
                Style::ShellAtTerminal => "bash",
                _ => "python3",
            };
            let flags: &[&str] = match client {
                Client::Docker => &["-i", "-t"],
                Client::Ctr { .. } => &["-t"],
            };
            let options = options.flags(flags.iter().copied()).args([program]);
            let (tool, mut sandbox) = client.run_rm_tool(DEBIAN, options)?;
            let told = Terminal::start(&tool, 24, 200)?;
            told.wait_for(match style {
                Style::ShellAtTerminal => "# ",
                _ => ">>> ",
            })?;
            sandbox.find_id()?;
            return Ok(Self::new(crab, sandbox, Told::Terminal(told)));
        }
        let sandbox = client.run(DEBIAN, options)?;
        let words: &[&str] = match style {
            Style::ShellByPipe | Style::Background | Style::SlowPrinter | Style::Asks => &["bash"],
            Style::Python => &["python3", "-i", "-q", "-u"],
            Style::Sqlite => &["sqlite3", "-interactive", "/root/db"],
            Style::Tmux => {
                sandbox
                    .exec(&[
                        "tmux",
                        "new-session",
                        "-d",
                        "-s",
                        "agent",
                        "-x",
                        "200",
                        "bash",
                    ])?
                    .ok()?;
                &[]
            }
            Style::AgentInside | Style::AgentAsProgram => {
                let quoted = MODEL.replace('\'', "\"");
                let model = format!("setsid python3 -c '{quoted}' </dev/null >/dev/null 2>&1 &");
                sandbox.sh_ok(&model)?;
                &[]
            }
            _ => &[],
        };
        let told = match words {
            [] => Told::Nobody,
            words => Told::Pipe(Session::start(&attached(&sandbox, words))?),
        };
        let mut play = Self::new(crab, sandbox, told);
        let prepares = matches!(
            style,
            Style::Tmux | Style::AgentInside | Style::AgentAsProgram
        );
        if !words.is_empty() || prepares {
            // The program's start is a turn, too: it ends when the program waits to be told something.
            play.turn("the start", None, None)?;
        }
        if style == Style::AgentInside {
            let tool = play
                .sandbox
                .exec_tool(&["python3", "-c", AGENT], &ExecOptions::new());
            play.told = Told::Pipe(Session::start(&tool)?);
        }
        Ok(play)
    }

    fn new(crab: &'a Crab, sandbox: Sandbox, told: Told) -> Self {
        Self {
            crab,
            sandbox,
            told,
            last: 0,
            found: Boundaries::default(),
        }
    }

    fn send(&mut self, text: &str) -> Result<()> {
        match &mut self.told {
            Told::Pipe(session) => session.send(text),
            Told::Terminal(terminal) => terminal.send(text),
            Told::Nobody => bail!("there is nobody to tell something"),
        }
    }

    fn seen(&self) -> String {
        match &self.told {
            Told::Pipe(session) => session.seen(),
            Told::Terminal(terminal) => terminal.seen(),
            Told::Nobody => String::new(),
        }
    }

    /// When the command that is the so many-th has ended.
    fn end(&self, number: usize) -> Result<f64> {
        poll("the command has ended", LIMIT, || {
            Ok(end_in(&self.seen(), number))
        })
        .with_context(|| format!("it printed {:?}", self.seen()))
    }

    /// The turn after the newest one, in which there has to be this path.
    fn turn(&mut self, what: &str, path: Option<&str>, end: Option<f64>) -> Result<Turn> {
        self.found.expected += 1;
        let turn = self
            .crab
            .wait_for_turn_after(&self.sandbox, Some(self.last))
            .with_context(|| format!("no end of the turn of {what}: {:?}", self.seen()))?;
        if turn.number() != self.last + 1 {
            let error = format!("{what}: turn {} after {}", turn.number(), self.last);
            self.found.errors.push(error);
        }
        self.last = turn.number();
        let record = &turn.record;
        if let Some(path) = path
            && !record.changed.iter().any(|changed| changed.path == path)
        {
            let error = format!("{what}: {path} is not in {record:?}");
            self.found.errors.push(error);
        }
        if let Some(end) = end {
            let looked = record.ended_ms as f64 + record.cost.boundary_us as f64 / 1000.0;
            self.found.delays_ms.push(looked - end);
            if looked + 1.0 < end {
                let error = format!("{what}: over {:.0} ms too early", end - looked);
                self.found.errors.push(error);
            }
        }
        Ok(turn)
    }

    fn step(&mut self, style: Style, step: usize) -> Result<()> {
        let path = format!("/root/step-{step}");
        let what = format!("step {step}");
        match style {
            Style::Execs => {
                let said = self.sandbox.sh_ok(&format!("echo x >{path}; {SAY_END}"))?;
                self.turn(&what, Some(&path), end_in(&format!("{said}\n"), 1))?;
            }
            Style::ExecsAtOnce => {
                let start = |n| {
                    let script = format!("sleep 0.{n}; echo x >{path}-{n}; {SAY_END}");
                    let words = ["sh", "-c", script.as_str()];
                    self.sandbox.exec_start(&words, &ExecOptions::new())
                };
                let running = [start(3)?, start(1)?, start(2)?];
                let mut last = 0.0_f64;
                for running in running {
                    let said = running.wait()?.ok()?.stdout;
                    last = last.max(end_in(&said, 1).context("no end")?);
                }
                let turn = self.turn(&what, Some(&format!("{path}-3")), Some(last))?;
                ensure!(turn.record.changed.len() >= 3, "{:?}", turn.record);
            }
            Style::Tmux => {
                let keys = format!("echo x >{path}; clear; {SAY_END}");
                let send = ["tmux", "send-keys", "-t", "agent", &keys, "Enter"];
                self.sandbox.exec(&send)?.ok()?;
                self.sandbox
                    .exec(&["tmux", "capture-pane", "-p", "-t", "agent"])?
                    .ok()?;
                self.turn(&what, None, None)?;
            }
            Style::ShellByPipe | Style::ShellAtTerminal => {
                self.send(&format!("echo x >{path}; {SAY_END}\n"))?;
                let end = self.end(step)?;
                self.turn(&what, Some(&path), Some(end))?;
            }
            Style::Python | Style::PythonAtTerminal => {
                self.send(&format!(
                    "_ = open('{path}', 'w').close(); import time; print('end' + '-%d' % (time.time() * 1000))\n"
                ))?;
                let end = self.end(step)?;
                self.turn(&what, Some(&path), Some(end))?;
            }
            Style::Sqlite => {
                self.send(&format!(
                    "create table t{step}(x); select 'end' || '-' || cast((julianday('now') - 2440587.5) * 86400000 as integer);\n"
                ))?;
                let end = self.end(step)?;
                self.turn(&what, Some("/root/db"), Some(end))?;
            }
            Style::Background => {
                if step == 1 {
                    // It is taken for background work when the shell has waited for long.
                    self.send("while :; do :; done & echo $! >/root/step-1\n")?;
                    self.turn(&what, Some(&path), None)?;
                    return Ok(());
                }
                self.send(&format!("echo x >{path}; {SAY_END}\n"))?;
                let end = self.end(step - 1)?;
                self.turn(&what, Some(&path), Some(end))?;
            }
            Style::SlowPrinter => {
                self.send(&format!(
                    "for i in 1 2 3; do echo $i; sleep 0.4; done; echo x >{path}; {SAY_END}\n"
                ))?;
                let end = self.end(step)?;
                self.turn(&what, Some(&path), Some(end))?;
            }
            Style::AgentInside | Style::AgentAsProgram => {
                // With the wait for an answer ends what the one before had led to.
                let before = format!("/root/step-{}", step - 1);
                let before = (step > 1).then_some(before.as_str());
                let end = match style {
                    Style::AgentInside => Some(self.end(step)?),
                    _ => None,
                };
                self.turn(&what, before, end)?;
            }
            Style::Asks => {
                self.send(&format!(
                    "echo x >{path}; read -p 'Continue? [y/N] ' a; echo $a >{path}-$a; {SAY_END}\n"
                ))?;
                self.turn("the question", Some(&path), None)?;
                self.send("y\n")?;
                let end = self.end(step)?;
                self.turn("the answer", Some(&format!("{path}-y")), Some(end))?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_is_found_where_a_whole_one_is() {
        let text = "$ date +e''nd-%s\nend-1700000000123\r\nend-17\nend-1700000000456";
        assert_eq!(end_in(text, 1), Some(1_700_000_000_123.0));
        assert_eq!(end_in(text, 2), None);
        assert_eq!(end_in(&format!("{text}\n"), 2), Some(1_700_000_000_456.0));
    }
}

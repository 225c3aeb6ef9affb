// SPDX-License-Identifier: Apache-2.0

//! The command line: the one definition that parsing and help come from.

use std::{path::PathBuf, process::ExitCode};

use clap::{Parser, Subcommand, error::ErrorKind};
use crab_store::TagName;

use crate::{
    error::{CliError, Code},
    events::{Format, Since},
    fork::{Pattern, Point},
    named::TurnName,
    units,
};

const LONG_ABOUT: &str = "\
Crab makes every turn of an AI agent's sandbox recoverable.

A sandbox is a container that runs under Crab. A turn is what the agent does in
it between two waits for its model, usually one exec; turns are numbered from 1,
and turn 0 is the container's start. When a turn ends, Crab looks at what it
left changed, and that is the turn's class:

  none       nothing: an older checkpoint holds, and the turn cost nothing
  files      files
  processes  memory of live processes
  full       both

What changed goes into a checkpoint; from then on you can go back to that turn.

A first walk:
  ctr run -d --runtime io.containerd.crab.v1 IMAGE demo sleep infinity
  ctr task exec --exec-id 1 demo sh -c 'echo hello > /greeting'
  crab ps                        which sandboxes there are
  crab turns demo                what happened in demo, turn by turn
  crab show demo 1               turn 1 in detail
  crab diff -u demo 0 1          what differs between the ends of two turns
  crab rollback demo --turn 0    as if it had never been
  crab verify demo               whether it is as the checkpoint has it
  crab fork demo@1 --count 2     two more containers, as demo was at turn 1
  crab tag demo 1 good           keep turn 1, and call it good
  crab du                        how much disk all that takes
  crab events --follow           what happens in all sandboxes, as it happens
  crab doctor                    whether this host has what Crab needs
With Docker: docker run -d --runtime io.containerd.crab.v1 IMAGE sleep infinity";

const AFTER_HELP: &str = "\
S names a sandbox: <namespace>/<id>, or its id, or the name of a Docker
container, or the beginning of an id if no other begins so.

Exit codes:
  0  done
  1  failed; of doctor: something that Crab needs is missing; of restore --all:
     a sandbox that was lost is not back
  2  wrong usage
  3  no such sandbox, turn or checkpoint
  4  refused in this state or to this user: nothing was changed
  5  verify, rollback --verify, diff --exit-code: the two states differ
  6  fsck: something is damaged; with --repair: a checkpoint was lost
An error is one line on standard error: `crab: WHAT: WHY; WHAT TO DO`.

Files:
  /etc/crab/config.toml  configuration, optional; CRAB_CONFIG names another
  /var/lib/crab          the store";

/// What was asked for.
#[derive(Debug, Parser)]
#[command(
    name = "crab",
    version,
    about = "Turns, checkpoints, rollback and restore of agent sandboxes",
    long_about = LONG_ABOUT,
    after_help = AFTER_HELP,
    max_term_width = 80
)]
pub(crate) struct Args {
    /// Print one JSON object instead of text; of events, one a line
    #[arg(long, global = true)]
    pub(crate) json: bool,
    /// Use the store in this directory, not the configured one
    #[arg(long, global = true, value_name = "DIR")]
    pub(crate) store: Option<PathBuf>,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// List the sandboxes, live and gone
    ///
    /// A sandbox that is gone has no shim any more: that was killed, or the
    /// container was deleted. Its checkpoints are in the store. Where containerd
    /// or Docker still has the container, `crab restore` brings it back.
    Ps,
    /// List the captures that are under way or wait, and the newest that have ended
    ///
    /// A turn that needs a checkpoint is a job: queued, capturing, publishing, and
    /// then durable, void or failed. SINCE is for how long it has been so, HELD for
    /// how long an exec or input has been held back for it, COST what its capture is
    /// expected to take, GOES ON when its agent is expected to go on. What all may use
    /// together, and how the next one is chosen, is in [schedule] of the configuration.
    /// Asks crabd.
    Jobs,
    /// List what happened in a sandbox, turn by turn
    ///
    /// CHECKPOINT is the checkpoint that holds the turn's state: that of the
    /// turn itself, or for class `none` an older one. BYTES is what it added to
    /// the store, CAPTURE how long taking it took, FROZEN for how long the
    /// sandbox stood still. Reads the store: no daemon is needed.
    Turns {
        /// The sandbox: <namespace>/<id>, an id or the beginning of one, or the
        /// name of a Docker container
        #[arg(value_name = "S")]
        sandbox: String,
    },
    /// Show one turn in detail
    ///
    /// Its command, its class and why, and what it cost; what is in the
    /// checkpoint that holds its state; and its effects: the files that it left
    /// added (+), changed (~) or removed (-) with their sizes, the processes
    /// that it left started (+), changed (~) or ended (-), where these listen,
    /// what went out and cannot be undone, and what was ignored by which rule.
    /// Reads the store: no daemon is needed.
    Show {
        /// The sandbox: <namespace>/<id>, an id or the beginning of one, or the
        /// name of a Docker container
        #[arg(value_name = "S")]
        sandbox: String,
        /// The turn: its number, or a name that `crab tag` gave it
        #[arg(value_name = "TURN")]
        turn: TurnName,
    },
    /// Print what has happened in sandboxes, or happens: a line each
    ///
    /// sandbox-started, -forked, -restored, -ended; turn-opened, -closed with its
    /// class; checkpoint-queued (it waits for those of other sandboxes), -captured,
    /// -durable, -failed with the kind of failure (given-up, merged, no-space or other)
    /// and the reason; checkpoints-removed; rolled-back. Without --follow, everything
    /// that the store has, by its time. docs/watching.md tells what each has in JSON.
    /// Reads the store: no daemon is needed.
    Events {
        /// The sandbox; without it, all of them, also those that begin later
        #[arg(value_name = "S")]
        sandbox: Option<String>,
        /// Go on with what happens from now on, until interrupted; what has happened
        /// before is printed only with --since
        #[arg(short, long)]
        follow: bool,
        /// From then on: an age such as 10m or 2h, a time such as
        /// 2026-11-30T19:00:00Z, or the beginning of a turn of S
        #[arg(long, value_name = "WHEN")]
        since: Option<Since>,
        /// What to print; --json is the same as --format json
        #[arg(long, value_name = "FORMAT")]
        format: Option<Format>,
    },
    /// Show how a sandbox differs between the ends of two turns
    ///
    /// Files, also those in memory (tmpfs), and processes that are there at the
    /// end of turn B and not of A (+), of A and not of B (-), or of both and
    /// not alike (~): content, size, mode, owner, time, extended attributes,
    /// kind. What an ignored file was at the end of a turn of class `none` is
    /// not known; see docs/configuration.md. Reads the store, and the layers of
    /// the image for what the sandbox changed of it: no daemon is needed.
    ///
    /// Ends with 0 also if they differ, unlike diff(1), whose 1 is a failure
    /// here: with --exit-code, they end with 5 then.
    Diff {
        /// The sandbox
        #[arg(value_name = "S")]
        sandbox: String,
        /// The turn whose end is the one side (-)
        #[arg(value_name = "A")]
        a: TurnName,
        /// The turn whose end is the other side (+)
        #[arg(value_name = "B")]
        b: TurnName,
        /// Show how the text of files differs, as diff -u does
        #[arg(short, long)]
        unified: bool,
        /// End with 5 if they differ
        #[arg(long)]
        exit_code: bool,
    },
    /// Say where a turn begins and ends, and what it is
    ///
    /// Optional: an agent framework knows more of its turns than Crab can see. Between
    /// `begin` and `end` nothing else ends the turn, unless everything in the sandbox has
    /// rested for long: then whoever began it is gone.
    #[command(subcommand)]
    Turn(Hint),
    /// Take a checkpoint of a live sandbox now
    ///
    /// Of what has changed since the newest one, also while a turn is open. Where
    /// nothing has, none is taken.
    Checkpoint {
        /// Tell what a checkpoint could hold now, and why not more; take none
        ///
        /// Nothing is changed or frozen. What CRIU is known not to hold is named
        /// with its process; there may be more that only the dump shows, and
        /// the checkpoint is then labelled.
        #[arg(long)]
        dry_run: bool,
        /// The sandbox: <namespace>/<id>, an id or the beginning of one, or the
        /// name of a Docker container
        #[arg(value_name = "S")]
        sandbox: String,
    },
    /// Bring a live sandbox back to the end of a turn
    ///
    /// In place: the container keeps its id, names, mounts, network and limits,
    /// and stays running for containerd and Docker. What reached the network or
    /// a bind mount is not undone. The turns in between stay in the history,
    /// and can be gone back to as well.
    ///
    /// Where its processes are still those of the checkpoint, they go on and only
    /// files are put back (warm). Otherwise all are ended, and those of the
    /// checkpoint restored (cold): then the answer says why.
    Rollback {
        /// The sandbox: <namespace>/<id>, an id or the beginning of one, or the
        /// name of a Docker container
        #[arg(value_name = "S")]
        sandbox: String,
        /// The turn at whose end the sandbox was as it shall be: its number, or a
        /// name that `crab tag` gave it
        #[arg(long, value_name = "TURN")]
        turn: TurnName,
        /// Compare the sandbox with the checkpoint afterwards, as verify does;
        /// end with 5 if they differ
        #[arg(long)]
        verify: bool,
        /// End the processes, also where they could go on
        #[arg(long)]
        cold: bool,
    },
    /// Say whether a live sandbox is as a checkpoint has it
    ///
    /// Reads every file anew, also those in memory (tmpfs), and looks at the
    /// processes: which there are, what they have open, what is in their memory.
    /// Each difference is a line: what is there now and was not (+), was there and
    /// is not (-), or is another (~). It may well differ: what has run since the
    /// checkpoint has changed things. The sandbox stands still for a moment, and
    /// nothing in it is changed.
    ///
    /// Ends with 0 if all is the same, and with 5 if not. What memory held is
    /// only known of processes that could be compared when the checkpoint was
    /// taken; of others it says so, and does not count them as different.
    Verify {
        /// The sandbox: <namespace>/<id>, an id or the beginning of one, or the
        /// name of a Docker container
        #[arg(value_name = "S")]
        sandbox: String,
        /// Compare with the end of this turn; without it, with the newest
        /// checkpoint
        #[arg(long, value_name = "TURN")]
        turn: Option<TurnName>,
    },
    /// Bring a sandbox back whose container or shim has died
    ///
    /// Starts the same container again, through Docker or containerd, from a
    /// checkpoint. They must still have it: what `docker rm` or `ctr containers
    /// rm` has deleted cannot be started. For a sandbox that is running, use
    /// rollback.
    ///
    /// With --all, every sandbox that was lost: that ran when its shim, or the
    /// whole host, died. What had ended by itself, was stopped or was removed
    /// stays so. What a restart policy has started anew since, and nobody has
    /// used, is rolled back. Several at a time; one that fails does not stop the
    /// others: then this ends with 1. Run again, it brings back what is still
    /// missing.
    Restore {
        /// The sandbox: <namespace>/<id>, an id or the beginning of one, or the
        /// name of a Docker container
        #[arg(value_name = "S", required_unless_present = "all")]
        sandbox: Option<String>,
        /// The turn at whose end the sandbox was as it shall be; without it,
        /// the newest state that was saved
        #[arg(long, value_name = "TURN")]
        turn: Option<TurnName>,
        /// Every sandbox that was lost, each as it was last saved
        #[arg(long, conflicts_with_all = ["sandbox", "turn"])]
        all: bool,
        /// Say which would come back, and why the others not; start nothing
        #[arg(long, requires = "all")]
        dry_run: bool,
    },
    /// Run copies of a sandbox
    ///
    /// Each is a container of its own, made by the client that made the sandbox
    /// (containerd or Docker), and begins as the sandbox is now, or was at the
    /// end of turn N: the same files, the same processes with what is in their
    /// memory. It has its own id, writable layer, cgroup, network namespace and
    /// history. Connections are closed in it; docs/clones.md tells what copies
    /// share. A live sandbox stands still for no longer than for a checkpoint.
    ///
    /// What fails is said, leaves nothing behind, and costs the others nothing:
    /// then this ends with 1.
    Fork {
        /// The sandbox, and with @N the turn: its number, or a name that
        /// `crab tag` gave it
        #[arg(value_name = "S[@N]")]
        point: Point,
        /// How many copies
        #[arg(long, value_name = "K", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000))]
        count: u32,
        /// What they are called: {n} is the number of each, from 1; without
        /// this, the next free of <S>-fork1, <S>-fork2, ...
        #[arg(long, value_name = "PATTERN")]
        name: Option<Pattern>,
        /// Have N copies stand by, paused: the next `crab fork` of this state takes
        /// them first, which takes a few milliseconds each. Those of another
        /// state of S are removed; 0 removes all
        #[arg(long, value_name = "N", conflicts_with = "count", value_parser = clap::value_parser!(u32).range(0..=1000))]
        warm: Option<u32>,
    },
    /// Show the turns of a sandbox and of its copies as a tree
    ///
    /// As `git log --graph` shows history: the newest above, a lane for each
    /// branch. Branches are left by rollbacks and begun by forks. All that are
    /// copies of the sandbox are in it, and all of which it is one; a sandbox
    /// whose history is gone is shown by its name (gone). Reads the store.
    Tree {
        /// The sandbox: <namespace>/<id>, an id or the beginning of one, or the
        /// name of a Docker container
        #[arg(value_name = "S")]
        sandbox: String,
    },
    /// Write a checkpoint into a file, for another host or another tool
    ///
    /// The file is an OCI image layout in a tar archive: the files as a layer, the
    /// memory mounts as one each, the processes as CRIU's images, the way containerd
    /// lays them out. `crab import` reads it, `ctr image import` and registries keep it,
    /// and `checkpointctl show` and `inspect` tell what is in it. The image that the
    /// container runs on is not: it has to be where the file is imported. The
    /// memory of processes may hold secrets, and so may the file.
    ///
    /// It is there whole or not at all. The sandbox may be live or gone.
    Export {
        /// The sandbox: <namespace>/<id>, an id or the beginning of one, or the
        /// name of a Docker container
        #[arg(value_name = "S")]
        sandbox: String,
        /// The turn whose end it is; without it, the newest state that was saved
        #[arg(long, value_name = "TURN")]
        turn: Option<TurnName>,
        /// The file
        #[arg(short, long, value_name = "FILE")]
        output: PathBuf,
    },
    /// Bring a checkpoint of another host into the store
    ///
    /// It becomes a sandbox of its own, that begins as a copy, with that one
    /// checkpoint. Make a container of its id and from the same image for it; then
    /// `crab restore` starts that from the checkpoint. Says whether the image is
    /// here, by name and digest.
    ///
    /// Every byte is checked, and all of it is there or nothing. What a checkpoint
    /// holds runs when it is restored: import what you would run.
    Import {
        /// What `crab export` has written
        #[arg(value_name = "FILE")]
        file: PathBuf,
        /// What it is called here: <namespace>/<id>, or an id in the namespace that
        /// it had; without it, as it was called there
        #[arg(long, value_name = "NAME")]
        id: Option<String>,
    },
    /// Give a turn a name, and keep its checkpoint
    ///
    /// `crab tag S 7 before-the-fix` names turn 7; wherever a turn is asked for,
    /// the name does as well. Its checkpoint stays, whatever else is removed,
    /// until `crab tag S --delete NAME`. `crab tag S` lists the names. The
    /// sandbox may be live or gone.
    Tag {
        /// The sandbox: <namespace>/<id>, an id or the beginning of one, or the
        /// name of a Docker container
        #[arg(value_name = "S")]
        sandbox: String,
        /// The turn
        #[arg(value_name = "TURN", requires = "name")]
        turn: Option<TurnName>,
        /// Its name: letters, digits, '.', '_' and '-', beginning with a letter
        #[arg(value_name = "NAME")]
        name: Option<TagName>,
        /// Take this name back
        #[arg(long, value_name = "NAME", conflicts_with_all = ["turn", "name"])]
        delete: Option<TagName>,
    },
    /// Show how much disk checkpoints take
    ///
    /// TOTAL is all that a sandbox has in the store. FILES and PROCESSES are what
    /// holds its files and what holds only its processes, after equal content was
    /// found and the rest compressed; RATIO is how much more was given to the
    /// store. DEAD is what `crab gc` would free without removing a checkpoint. Of one
    /// sandbox, also what each checkpoint added and what only it needs (UNIQUE).
    Du {
        /// The sandbox; without it, all of them
        #[arg(value_name = "S")]
        sandbox: Option<String>,
    },
    /// Remove checkpoints that are not to be kept, and what none needs
    ///
    /// What is kept is in [retention] of the configuration, by default
    /// everything; the options here take its place. The newest state, what has a
    /// name (`crab tag`) and what is in use always stay. The sandbox may be live,
    /// and is not held up: its own shim does it. Turns whose checkpoints were
    /// removed stay in `crab turns`.
    Gc {
        /// The sandbox; without it, all of them
        #[arg(value_name = "S")]
        sandbox: Option<String>,
        /// Say what would be removed, and remove nothing
        #[arg(long)]
        dry_run: bool,
        /// Keep so many checkpoints of a sandbox, beside those that always stay
        #[arg(long, value_name = "N")]
        keep: Option<u64>,
        /// Keep what is no older, such as 90m, 12h or 30d
        #[arg(long, value_name = "AGE", value_parser = units::age_ms)]
        max_age: Option<u64>,
        /// Keep the newest that need no more disk, such as 500M or 20G
        #[arg(long, value_name = "SIZE", value_parser = units::bytes)]
        max_bytes: Option<u64>,
    },
    /// Check that what is in the store is as it was written
    ///
    /// Reads every byte: manifests, packs and each object in them, the journal,
    /// tags. Changes nothing, and a sandbox may run on meanwhile. Says of each
    /// thing that is damaged which turns cannot be brought back because of it,
    /// and ends with 6 if there is any.
    ///
    /// With --repair, what is damaged is put aside (`damaged` in the sandbox's
    /// directory of the store; nothing is deleted), packs and journal are built
    /// anew from what in them is sound, and what is left is whole. Ends with 6
    /// if a checkpoint was lost. The sandbox must not be live.
    Fsck {
        /// The sandbox; without it, all of them
        #[arg(value_name = "S")]
        sandbox: Option<String>,
        /// Put right what is damaged
        #[arg(long)]
        repair: bool,
    },
    /// Say whether this host has what Crab needs, and what to do where not
    ///
    /// One line for each thing: `ok`; `warn`, where Crab works and something
    /// costs more or is not kept; `fail`, where Crab needs it; `-`, where it is
    /// not on this host and need not be. Ends with 0 if nothing fails, else with
    /// 1. Changes nothing, and starts nothing that stays.
    Doctor,
}

/// A hint.
#[derive(Debug, Subcommand)]
pub(crate) enum Hint {
    /// A turn begins
    ///
    /// An exec that still runs, and its turn, become part of it.
    Begin(About),
    /// The turn that was begun is over
    ///
    /// Returns at once: what the turn needs is taken behind the answer.
    End(About),
}

/// Of what a hint is.
#[derive(Debug, clap::Args)]
pub(crate) struct About {
    /// The sandbox
    #[arg(value_name = "S")]
    pub(crate) sandbox: String,
    /// What `crab turns` shows beside the turn, such as tool=bash; may be repeated
    #[arg(long, value_name = "NAME=VALUE", value_parser = entry)]
    pub(crate) meta: Vec<(String, String)>,
}

/// An entry of a turn's metadata.
fn entry(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.into(), value.into())),
        _ => Err("it must be NAME=VALUE".into()),
    }
}

impl Args {
    /// Reads the command line. When there is nothing left to do, because it was
    /// a question or makes no sense, says so and gives the exit code.
    pub(crate) fn read() -> Result<Self, ExitCode> {
        Self::try_parse().map_err(|error| match error.kind() {
            ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
                // A reader that has seen enough is no failure.
                let _ = error.print();
                ExitCode::SUCCESS
            }
            ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
                eprintln!("{}", usage("no command was given"));
                Code::Usage.into()
            }
            _ => {
                let text = error.to_string();
                // What follows the first blank line is advice of clap's own.
                let why = text.split("\n\n").next().unwrap_or(&text);
                eprintln!("{}", usage(why.trim_start_matches("error: ")));
                Code::Usage.into()
            }
        })
    }
}

fn usage(why: &str) -> CliError {
    CliError::new(Code::Usage, "wrong usage", why, "see crab --help")
}

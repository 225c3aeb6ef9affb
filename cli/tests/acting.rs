// SPDX-License-Identifier: Apache-2.0

//! `checkpoint`, `rollback`, `restore`: what is asked of a shim, and what a
//! user reads when that goes well or wrong. The shim here speaks the real
//! protocol and has no container behind it; `integration/` has the rest.

mod support;

use std::{
    collections::BTreeMap,
    fs,
    sync::{Arc, Mutex},
};

use crab_api::{
    sandbox::*,
    sandbox_ttrpc,
    ttrpc::{self, Code},
};
use crab_store::{Client, Store, TurnId};
use support::{shim::Served, *};

/// A shim that answers what it is told to, and notes what it was asked.
#[derive(Default)]
struct Shim {
    state: Mutex<String>,
    refuse: Mutex<Option<(Code, String)>>,
    asked: Mutex<Vec<u64>>,
    meta: Mutex<BTreeMap<String, String>>,
}

impl Shim {
    fn refusal(&self) -> ttrpc::Result<()> {
        match &*self.refuse.lock().unwrap() {
            Some((code, why)) => Err(ttrpc::Error::RpcStatus(ttrpc::get_status(*code, why))),
            None => Ok(()),
        }
    }
}

#[async_trait::async_trait]
impl sandbox_ttrpc::Sandbox for Shim {
    async fn status(
        &self,
        _: &ttrpc::asynchronous::TtrpcContext,
        _: StatusRequest,
    ) -> ttrpc::Result<SandboxStatus> {
        Ok(SandboxStatus {
            state: self.state.lock().unwrap().clone(),
            pid: 4321,
            turn: 6,
            turn_open: true,
            config_faults: vec!["the default configuration is in force".to_owned()],
            ..Default::default()
        })
    }

    async fn checkpoint(
        &self,
        _: &ttrpc::asynchronous::TtrpcContext,
        _: CheckpointRequest,
    ) -> ttrpc::Result<CheckpointResponse> {
        self.refusal()?;
        Ok(CheckpointResponse {
            turn: 7,
            class: "files".to_owned(),
            degraded: "files only: no criu".to_owned(),
            bytes: 2048,
            capture_us: 1500,
            ..Default::default()
        })
    }

    async fn dry_run(
        &self,
        _: &ttrpc::asynchronous::TtrpcContext,
        _: DryRunRequest,
    ) -> ttrpc::Result<DryRunResponse> {
        self.refusal()?;
        Ok(DryRunResponse {
            class: "files".to_owned(),
            reason: "its processes cannot be kept".to_owned(),
            obstacles: vec!["process 7 (x) holds an io_uring".to_owned()],
            ..Default::default()
        })
    }

    async fn begin_turn(
        &self,
        _: &ttrpc::asynchronous::TtrpcContext,
        req: BeginTurnRequest,
    ) -> ttrpc::Result<TurnHinted> {
        self.refusal()?;
        *self.meta.lock().unwrap() = req.meta.into_iter().collect();
        Ok(TurnHinted {
            turn: 8,
            ..Default::default()
        })
    }

    async fn collect(
        &self,
        _: &ttrpc::asynchronous::TtrpcContext,
        request: CollectRequest,
    ) -> ttrpc::Result<CollectResponse> {
        self.refusal()?;
        self.asked.lock().unwrap().extend(request.keep);
        Ok(CollectResponse {
            removed: vec![collect_response::Removed {
                turn: 3,
                why: "one newer is kept".to_owned(),
                ..Default::default()
            }],
            kept: 2,
            bytes_before: 4096,
            bytes_freed: 1024,
            postponed: "a checkpoint is being read".to_owned(),
            ..Default::default()
        })
    }

    async fn rollback(
        &self,
        _: &ttrpc::asynchronous::TtrpcContext,
        request: RollbackRequest,
    ) -> ttrpc::Result<RollbackResponse> {
        self.refusal()?;
        self.asked.lock().unwrap().push(request.turn);
        Ok(RollbackResponse {
            checkpoint: 2,
            processes: true,
            pid: 99,
            took_us: 85_000,
            warm: !request.cold,
            cold_because: if request.cold {
                "it was asked for".to_owned()
            } else {
                String::new()
            },
            verification: request.verify.then(unlike).into(),
            ..Default::default()
        })
    }

    async fn verify(
        &self,
        _: &ttrpc::asynchronous::TtrpcContext,
        request: VerifyRequest,
    ) -> ttrpc::Result<Verification> {
        self.refusal()?;
        Ok(match request.has_turn {
            true => unlike(),
            false => Verification {
                checkpoint: 6,
                same: true,
                paths: 12,
                memory: "same".to_owned(),
                took_us: 7_000,
                ..Default::default()
            },
        })
    }
}

/// What is told of a sandbox that is not as it was.
fn unlike() -> Verification {
    Verification {
        checkpoint: 2,
        paths: 12,
        paths_differing: 3,
        differences: vec![
            PathDifference {
                path: "/root/f\u{7}".to_owned(),
                change: "changed".to_owned(),
                kind: "file".to_owned(),
                what: "content".to_owned(),
                ..Default::default()
            },
            PathDifference {
                path: "/root/d".to_owned(),
                change: "removed".to_owned(),
                kind: "dir".to_owned(),
                ..Default::default()
            },
        ],
        processes: 1,
        process_differences: vec![ProcessDifference {
            pid: 7,
            comm: "python3".to_owned(),
            change: "changed".to_owned(),
            what: vec!["parent: 1 -> 3".to_owned(), "memory".to_owned()],
            ..Default::default()
        }],
        memory: "differs".to_owned(),
        degraded: "files only: no criu".to_owned(),
        took_us: 9_000,
        ..Default::default()
    }
}

const UNLIKE: &str = "\
default/demo has changed since checkpoint 2 (compared 12 paths, 1 process, memory differs; 9.0 ms)
the checkpoint has files only: no criu
~ /root/f\\u{7}: content
- /root/d (dir)
and 1 more paths
~ process 7 (python3): parent: 1 -> 3; memory
";

/// A host on which the sandbox default/demo is alive.
struct Alive {
    host: Host,
    shim: Arc<Shim>,
    served: Served,
}

impl Alive {
    fn new() -> Self {
        let host = Host::with_history("default/demo");
        let shim = Arc::new(Shim::default());
        *shim.state.lock().unwrap() = "running".to_owned();
        let served = Served::begin(&host, shim.clone());
        Self { host, shim, served }
    }

    fn refuse(&self, code: Code, why: &str) {
        *self.shim.refuse.lock().unwrap() = Some((code, why.to_owned()));
    }
}

#[test]
fn ps_and_turns_tell_what_lives() {
    let alive = Alive::new();
    let json = alive.host.crab(&["ps", "--json"]).json();
    let demo = &json["sandboxes"][0];
    assert_eq!(demo["state"], "running");
    assert_eq!(demo["pid"], 4321);
    assert_eq!(demo["turn"], 6);
    assert_eq!(demo["turn_open"], true);
    let text = alive.host.crab(&["ps"]).ok();
    assert!(text.contains("6 (open)"), "{text}");
    assert!(
        text.contains("the default configuration is in force"),
        "{text}"
    );
    let text = alive.host.crab(&["turns", "demo"]).ok();
    assert!(text.ends_with("turn 6 is open\n"), "{text}");
}

#[test]
fn a_hint_hands_its_metadata_on_and_names_the_turn() {
    let alive = Alive::new();
    let words = [
        "turn",
        "begin",
        "demo",
        "--meta",
        "tool=bash",
        "--meta",
        "why=a=b",
    ];
    assert_eq!(
        alive.host.crab(&words).ok(),
        "default/demo: turn 8 is begun\n"
    );
    let meta = alive.shim.meta.lock().unwrap().clone();
    let expected = [("tool", "bash"), ("why", "a=b")];
    assert_eq!(
        meta,
        expected.map(|(n, v)| (n.to_owned(), v.to_owned())).into()
    );
    let wrong = ["turn", "begin", "demo", "--meta", "=x"];
    alive.host.crab(&wrong).error(2);
    alive.refuse(Code::FAILED_PRECONDITION, "checkpoints are switched off");
    alive.host.crab(&["turn", "begin", "demo"]).error(4);
}

#[test]
fn a_checkpoint_says_what_it_is_worth() {
    let alive = Alive::new();
    assert_eq!(
        alive.host.crab(&["checkpoint", "demo"]).ok(),
        "default/demo: checkpoint 7 taken (files, 2.0 KiB in 1.5 ms)\nfiles only: no criu\n"
    );
    let json = alive.host.crab(&["checkpoint", "demo", "--json"]).json();
    assert_eq!(json["turn"], 7);
    assert_eq!(json["degraded"], "files only: no criu");
}

#[test]
fn a_dry_run_says_what_is_in_the_way() {
    let alive = Alive::new();
    assert_eq!(
        alive.host.crab(&["checkpoint", "--dry-run", "demo"]).ok(),
        "default/demo: a checkpoint could be files: its processes cannot be kept\n  \
         process 7 (x) holds an io_uring\n"
    );
    let json = alive
        .host
        .crab(&["checkpoint", "--dry-run", "demo", "--json"])
        .json();
    assert_eq!(json["class"], "files");
    assert_eq!(json["left_out"], serde_json::Value::Null);
    alive.refuse(Code::FAILED_PRECONDITION, "checkpoints are switched off");
    alive
        .host
        .crab(&["checkpoint", "--dry-run", "demo"])
        .error(4);
}

#[test]
fn a_rollback_asks_for_the_turn_and_says_which_checkpoint_it_was() {
    let alive = Alive::new();
    assert_eq!(
        alive.host.crab(&["rollback", "demo", "--turn", "5"]).ok(),
        "default/demo is back at turn 5 (checkpoint 2, warm: files alone) after 85 ms\n"
    );
    let json = alive
        .host
        .crab(&["--json", "rollback", "demo", "--turn", "2"])
        .json();
    assert_eq!(json["checkpoint"], 2);
    assert_eq!(json["pid"], 99);
    assert_eq!(
        (&json["warm"], &json["cold_because"]),
        (&true.into(), &().into())
    );
    let cold = ["rollback", "demo", "--turn", "2", "--cold"];
    assert_eq!(
        alive.host.crab(&cold).ok(),
        "default/demo is back at turn 2 (checkpoint 2, cold: files and processes) after 85 ms\n\
         cold, as it was asked for\n"
    );
    // What cannot exist is not even asked for.
    let error = alive
        .host
        .crab(&["rollback", "demo", "--turn", "77"])
        .error(3);
    assert!(error.contains("has no turn 77"), "{error}");
    assert_eq!(*alive.shim.asked.lock().unwrap(), [5, 2, 2]);
}

#[test]
fn what_differs_from_a_checkpoint_is_told_and_is_the_exit_code() {
    let alive = Alive::new();
    assert_eq!(
        alive.host.crab(&["verify", "demo"]).ok(),
        "default/demo is as at checkpoint 6 (compared 12 paths, 0 processes, memory same; 7.0 ms)\n"
    );
    let said = alive.host.crab(&["verify", "demo", "--turn", "2"]);
    assert_eq!(
        (said.code, said.out.as_str(), said.err.as_str()),
        (5, UNLIKE, "")
    );
    let said = alive
        .host
        .crab(&["verify", "demo", "--turn", "2", "--json"]);
    let json: serde_json::Value = serde_json::from_str(&said.out).unwrap();
    assert_eq!((said.code, &json["same"]), (5, &false.into()));
    assert_eq!(json["process_differences"][0]["what"][1], "memory");
    // Back, and not as it should be: that is said aloud.
    let said = alive
        .host
        .crab(&["rollback", "demo", "--turn", "2", "--verify"]);
    assert_eq!(said.code, 5, "{}", said.err);
    assert!(said.out.ends_with(UNLIKE), "{}", said.out);
}

#[test]
fn a_refusal_of_the_shim_is_one_line_with_its_code() {
    let alive = Alive::new();
    for (rpc, code) in [
        (Code::NOT_FOUND, 3),
        (Code::FAILED_PRECONDITION, 4),
        (Code::INTERNAL, 1),
        (Code::UNAVAILABLE, 1),
    ] {
        alive.refuse(rpc, "criu failed:\n\n  Error (x.c:1)\n");
        let error = alive
            .host
            .crab(&["rollback", "demo", "--turn", "2"])
            .error(code);
        let begin = "crab: cannot roll back default/demo: criu failed: Error (x.c:1); ";
        assert!(error.starts_with(begin), "{error}");
        alive.host.crab(&["checkpoint", "demo"]).error(code);
    }
}

#[test]
fn what_runs_is_not_restored() {
    let alive = Alive::new();
    assert_eq!(
        alive.host.crab(&["restore", "demo"]).error(4),
        "crab: cannot restore default/demo: it is running; use `crab rollback default/demo \
         --turn TURN`, or stop it first"
    );
    *alive.shim.state.lock().unwrap() = "stopped".to_owned();
    let error = alive
        .host
        .crab(&["rollback", "demo", "--turn", "2"])
        .error(4);
    assert!(
        error.contains("it has stopped; bring it back with"),
        "{error}"
    );
}

#[test]
fn what_is_gone_is_neither_checkpointed_nor_rolled_back() {
    let host = Host::with_history("default/demo");
    for args in [
        &["checkpoint", "demo"][..],
        &["rollback", "demo", "--turn", "1"],
    ] {
        let error = host.crab(args).error(4);
        assert!(error.ends_with("bring it back with `crab restore default/demo`"));
    }
    // A shim that was killed leaves its address behind.
    let mut alive = Alive::new();
    alive.served.end();
    alive.host.crab(&["checkpoint", "demo"]).error(4);
    let json = alive.host.crab(&["ps", "--json"]).json();
    assert_eq!(json["sandboxes"][0]["state"], "gone");
}

#[test]
fn a_restore_that_fails_leaves_no_wish_behind() {
    let host = Host::with_history("default/demo");
    let sandbox = Store::open(host.path("store")).unwrap();
    let sandbox = sandbox.sandbox(&"demo".parse().unwrap()).unwrap();
    let error = host.crab(&["restore", "demo"]).error(1);
    assert!(error.contains("there is no ctr on PATH"), "{error}");
    assert_eq!(sandbox.restore_request().unwrap(), None);

    // Turn 4 has no checkpoint, turn 9 is none.
    let error = host.crab(&["restore", "demo", "--turn", "4"]).error(3);
    assert!(error.contains("no space left; the newest checkpoint before it is that of turn 3"));
    host.crab(&["restore", "demo", "--turn", "9"]).error(3);

    // A damaged checkpoint is noticed before anything is started.
    let manifest = sandbox.manifest(TurnId(2)).unwrap().unwrap();
    let packs = host.path("store/sandboxes/default/demo/packs");
    fs::remove_file(packs.join(format!("{}.pack", manifest.packs[0]))).unwrap();
    let error = host.crab(&["restore", "demo"]).error(1);
    assert!(error.contains("is missing"), "{error}");
}

#[test]
fn a_container_of_a_pod_is_not_restored_and_what_helps_is_said() {
    let host = Host::new();
    host.history("k8s.io/demo", Client::Kubernetes);
    let error = host.crab(&["restore", "demo"]).error(4);
    assert!(error.contains("Kubernetes replaces"), "{error}");
    assert!(error.contains("crab rollback k8s.io/demo"), "{error}");
}

#[test]
fn a_sandbox_without_a_checkpoint_cannot_be_restored() {
    let host = Host::new();
    drop(host.writer("default/new"));
    let error = host.crab(&["restore", "new"]).error(3);
    assert!(
        error.contains("it has no checkpoint; start its container"),
        "{error}"
    );
}

#[test]
fn what_is_not_kept_of_a_live_sandbox_its_shim_removes() {
    let alive = Alive::new();
    // As its shim has it.
    let writer = alive.host.writer("default/demo");
    let text = alive.host.crab(&["gc", "demo", "--keep", "1"]).ok();
    for part in ["3 ", "1.0 KiB", "a checkpoint is being read"] {
        assert!(text.contains(part), "{part:?} is not in {text}");
    }
    assert_eq!(*alive.shim.asked.lock().unwrap(), [1]);
    let json = alive.host.crab(&["gc", "--json"]).json();
    assert_eq!(json["sandboxes"][0]["removed"]["3"], "one newer is kept");
    // Nothing was said of how many.
    assert_eq!(*alive.shim.asked.lock().unwrap(), [1]);
    drop(writer);
}

#[test]
fn a_tag_names_the_turn_to_roll_back_to() {
    let alive = Alive::new();
    alive.host.crab(&["tag", "demo", "2", "good"]).ok();
    alive
        .host
        .crab(&["rollback", "demo", "--turn", "good"])
        .ok();
    assert_eq!(*alive.shim.asked.lock().unwrap(), [2]);
}

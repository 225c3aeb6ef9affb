// SPDX-License-Identifier: Apache-2.0

//! What containerd and Docker say of the containers of sandboxes that were lost.

use std::{
    cell::Cell,
    collections::BTreeMap,
    time::{Duration, Instant},
};

use crab_store::{Client, SandboxId, SandboxMeta, UPPER, layer_of};
use hyper::StatusCode;
use serde_json::Value;
use tokio::{sync::Mutex, time::sleep};

use super::judge::Container;
use crate::{
    containerd::{self, Containerd},
    docker::api::{self, Docker},
};

/// Set by whoever has containerd start a container again whenever it does not run:
/// containerd's restart monitor.
const RESTARTED: (&str, &str) = ("containerd.io/restart.status", "running");
/// For how long one of both may not be there: it is started beside this when the host is, or
/// again by an upgrade.
const ABSENCE: Duration = Duration::from_secs(30);
/// How often it is looked whether it is.
const POLL: Duration = Duration::from_millis(100);

/// Both of them, and a connection for each of containerd's namespaces.
#[derive(Default)]
pub(super) struct Containers {
    containerd: Absence,
    docker: Absence,
    namespaces: Mutex<BTreeMap<String, Containerd>>,
}

/// Until when one that is not there is waited for: by all who ask it.
#[derive(Default)]
struct Absence {
    until: Cell<Option<Instant>>,
}

/// Why nothing is said.
enum Silence {
    /// Nobody is there to answer, or not yet.
    Absent(String),
    Other(String),
}

impl From<containerd::Refusal> for Silence {
    fn from(refusal: containerd::Refusal) -> Self {
        match refusal.is_unavailable() {
            true => Self::Absent(refusal.into()),
            false => Self::Other(refusal.into()),
        }
    }
}

impl From<api::Refusal> for Silence {
    fn from(refusal: api::Refusal) -> Self {
        match refusal.is_unavailable {
            true => Self::Absent(refusal.into()),
            false => Self::Other(refusal.into()),
        }
    }
}

impl Absence {
    /// Asks until somebody is there.
    async fn ask<T>(&self, question: impl AsyncFn() -> Result<T, Silence>) -> Result<T, String> {
        loop {
            match question().await {
                Ok(said) => {
                    self.until.set(None);
                    return Ok(said);
                }
                Err(Silence::Other(why)) => return Err(why),
                Err(Silence::Absent(why)) if self.is_over(&why) => return Err(why),
                Err(Silence::Absent(_)) => sleep(POLL).await,
            }
        }
    }

    /// Whether it has lasted for too long; that it is waited for is told once.
    fn is_over(&self, why: &str) -> bool {
        let now = Instant::now();
        let until = self.until.get().unwrap_or_else(|| {
            eprintln!("crab: {why}; waiting up to {} s", ABSENCE.as_secs());
            now + ABSENCE
        });
        self.until.set(Some(until));
        now >= until
    }
}

impl Containers {
    /// What is said of this sandbox's, or why nothing.
    pub(super) async fn of(
        &self,
        id: &SandboxId,
        client: Client,
        meta: Option<&SandboxMeta>,
    ) -> Result<Container, String> {
        match client {
            Client::Docker => self.docker.ask(async || in_docker(id).await).await,
            Client::Containerd | Client::Kubernetes => {
                let question = async || self.in_containerd(id, meta).await;
                self.containerd.ask(question).await
            }
        }
    }

    async fn in_containerd(
        &self,
        id: &SandboxId,
        meta: Option<&SandboxMeta>,
    ) -> Result<Container, Silence> {
        let api = self.namespace(id.namespace()).await?;
        let record = match api.container(id.id()).await {
            Ok(record) => record,
            Err(refusal) if refusal.is_not_found() => return Ok(Container::Removed),
            Err(refusal) => return Err(refusal.into()),
        };
        let restarts = record.labels.get(RESTARTED.0).map(String::as_str) == Some(RESTARTED.1);
        let there = Container::There { restarts };
        let upper = meta.and_then(|meta| meta.snapshot.get(UPPER));
        // One that is of no snapshot has its directory's name, which says no more than its own.
        let (Some(upper), false) = (upper, record.snapshot_key.is_empty()) else {
            return Ok(there);
        };
        let mounts = api.mounts(&record.snapshotter, &record.snapshot_key).await;
        let mounts = match mounts {
            Ok(mounts) => mounts,
            Err(refusal) if refusal.is_not_found() => return Ok(Container::Another),
            Err(refusal) => return Err(refusal.into()),
        };
        let layer = mounts
            .first()
            .map(|mount| layer_of(&mount.kind, &mount.source, &mount.options));
        Ok(match layer {
            Some(layer) if layer != *upper => Container::Another,
            _ => there,
        })
    }

    async fn namespace(&self, namespace: &str) -> Result<Containerd, Silence> {
        let mut all = self.namespaces.lock().await;
        if let Some(connected) = all.get(namespace) {
            return Ok(connected.clone());
        }
        let connected = Containerd::connect(namespace).await?;
        all.insert(namespace.to_owned(), connected.clone());
        Ok(connected)
    }
}

async fn in_docker(id: &SandboxId) -> Result<Container, Silence> {
    let docker = Docker::here().map_err(Silence::Other)?;
    match docker.inspect(id.id()).await {
        Ok(container) => Ok(Container::There {
            restarts: restarts(&container),
        }),
        Err(refusal) if refusal.status == Some(StatusCode::NOT_FOUND) => Ok(Container::Removed),
        Err(refusal) => Err(refusal.into()),
    }
}

fn restarts(container: &Value) -> bool {
    let policy = &container["HostConfig"]["RestartPolicy"]["Name"];
    !matches!(policy.as_str(), None | Some("" | "no"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use tokio::{net::UnixListener, time::timeout};

    use super::*;

    /// Longer than anything takes that happens.
    const LIMIT: Duration = Duration::from_secs(20);

    #[tokio::test]
    async fn a_containerd_that_is_not_there_yet_is_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("s");
        let absence = Absence::default();
        let tries = Cell::new(0);
        let connected = absence.ask(async || {
            tries.set(tries.get() + 1);
            Ok(Containerd::at(socket.clone(), "default").await?)
        });
        let listens = async {
            while tries.get() < 2 {
                sleep(Duration::from_millis(1)).await;
            }
            let listener = UnixListener::bind(&socket).unwrap();
            // Until it is dialled by the channel, too.
            let first = listener.accept().await.unwrap();
            let second = listener.accept().await.unwrap();
            (listener, first, second)
        };
        let both = timeout(LIMIT, async { tokio::join!(connected, listens) });
        let (connected, _listens) = both.await.unwrap();
        assert!(connected.is_ok(), "{:?}", connected.err());
        assert!(absence.until.get().is_none());
    }

    #[tokio::test]
    async fn who_stays_away_is_waited_for_once_by_all() {
        let absence = Absence::default();
        absence.until.set(Some(Instant::now()));
        for _ in 0..3 {
            let asked = absence.ask(async || Err::<(), _>(Silence::Absent("gone".into())));
            assert_eq!(asked.await, Err("gone".to_owned()));
        }
        let refused = Absence::default();
        let asked = refused.ask(async || Err::<(), _>(Silence::Other("no".into())));
        assert_eq!(asked.await, Err("no".to_owned()));
    }

    #[test]
    fn a_restart_policy_is_any_but_no() {
        let with = |name: &str| restarts(&json!({"HostConfig": {"RestartPolicy": {"Name": name}}}));
        assert!(with("always") && with("unless-stopped") && with("on-failure"));
        assert!(!with("no") && !with("") && !restarts(&json!({})));
    }
}

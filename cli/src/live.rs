// SPDX-License-Identifier: Apache-2.0

//! Sandboxes that are alive: asking their shims.

use std::{
    io::ErrorKind,
    path::Path,
    time::{Duration, Instant},
};

use crab_api::{
    paths,
    sandbox::{SandboxStatus, StatusRequest},
    sandbox_ttrpc::SandboxClient,
    ttrpc::{self, Code as Rpc, context},
};
use crab_config::Config;
use crab_store::SandboxId;

use crate::error::{CliError, Code};

/// For how long a shim may take to say how it is.
const STATUS_TIMEOUT: Duration = Duration::from_secs(5);
/// For how long a hint may wait for a capture that is under way.
pub(crate) const HINT_TIMEOUT: Duration = Duration::from_secs(30);
/// For how long a checkpoint or a rollback may take.
pub(crate) const WORK_TIMEOUT: Duration = Duration::from_secs(300);

/// A sandbox's shim and what it said.
pub(crate) struct Live {
    pub(crate) client: SandboxClient,
    pub(crate) status: SandboxStatus,
}

/// Why a shim gave no answer.
pub(crate) enum NoAnswer {
    /// There is none: it has ended, or was killed.
    Gone,
    /// There is one, but it cannot be talked to.
    Deaf(String),
}

/// The sandboxes that have a shim, or had one that was not cleaned up after.
pub(crate) fn ids(run_dir: &Path) -> Vec<SandboxId> {
    let names = |dir: &Path| -> Vec<String> {
        let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
        entries
            .filter_map(|entry| entry.file_name().into_string().ok())
            .collect()
    };
    let sandboxes = paths::sandboxes_dir(run_dir);
    let namespaces = names(&sandboxes).into_iter();
    namespaces
        .flat_map(|namespace| {
            let ids = names(&sandboxes.join(&namespace)).into_iter();
            ids.filter_map(move |id| SandboxId::new(&namespace, &id).ok())
        })
        .collect()
}

impl Live {
    /// Asks a sandbox's shim how it is.
    pub(crate) async fn find(config: &Config, id: &SandboxId) -> Result<Self, NoAnswer> {
        let file = paths::sandbox_address(&config.run_dir, id.namespace(), id.id());
        let address = match std::fs::read_to_string(&file) {
            Ok(address) => address,
            Err(error) if error.kind() == ErrorKind::NotFound => return Err(NoAnswer::Gone),
            Err(error) => return Err(NoAnswer::Deaf(format!("{}: {error}", file.display()))),
        };
        let start = Instant::now();
        loop {
            let client = match crab_api::connect(Path::new(address.trim())).await {
                Ok(client) => SandboxClient::new(client),
                Err(crab_api::ConnectError::Connect { source, .. })
                    if matches!(
                        source.kind(),
                        ErrorKind::NotFound | ErrorKind::ConnectionRefused
                    ) =>
                {
                    return Err(NoAnswer::Gone);
                }
                Err(error) => return Err(NoAnswer::Deaf(error.to_string())),
            };
            let context = context::with_duration(STATUS_TIMEOUT);
            let request = StatusRequest {
                id: id.id().into(),
                ..Default::default()
            };
            match client.status(context, &request).await {
                Ok(status) => return Ok(Self { client, status }),
                // That of a pod, of which this container is no more.
                Err(ttrpc::Error::RpcStatus(status)) if status.code() == Rpc::NOT_FOUND => {
                    return Err(NoAnswer::Gone);
                }
                // A shim that is just being killed still has its socket, and hangs up.
                Err(error)
                    if !matches!(error, ttrpc::Error::RpcStatus(_))
                        && start.elapsed() < STATUS_TIMEOUT =>
                {
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
                Err(error) => return Err(NoAnswer::Deaf(describe(&error))),
            }
        }
    }

    /// The same for a command that needs the sandbox alive.
    pub(crate) async fn require(
        config: &Config,
        what: &str,
        id: &SandboxId,
    ) -> Result<Self, CliError> {
        let what = format!("cannot {what} {id}");
        match Self::find(config, id).await {
            Ok(live) if live.status.state == "stopped" => Err(CliError::new(
                Code::Refused,
                what,
                "it has stopped",
                format!("bring it back with `crab restore {id}`"),
            )),
            Ok(live) => Ok(live),
            Err(NoAnswer::Gone) => Err(CliError::new(
                Code::Refused,
                what,
                "it is not running",
                format!("bring it back with `crab restore {id}`"),
            )),
            Err(NoAnswer::Deaf(why)) => Err(CliError::failed(
                what,
                format!("its shim does not answer: {why}"),
                "see the shim's log and try again",
            )),
        }
    }
}

fn describe(error: &ttrpc::Error) -> String {
    match error {
        ttrpc::Error::RpcStatus(status) => status.message().to_owned(),
        error => error.to_string(),
    }
}

/// What a shim's refusal means to the user.
pub(crate) fn refusal(what: &str, id: &SandboxId, error: &ttrpc::Error) -> CliError {
    let rpc = match error {
        ttrpc::Error::RpcStatus(status) => status.code(),
        _ => Rpc::UNKNOWN,
    };
    let (code, advice) = match rpc {
        Rpc::NOT_FOUND => (Code::NotFound, format!("`crab turns {id}` lists the turns")),
        Rpc::FAILED_PRECONDITION | Rpc::INVALID_ARGUMENT | Rpc::UNIMPLEMENTED => {
            (Code::Refused, "nothing was changed".to_owned())
        }
        Rpc::UNAVAILABLE | Rpc::ABORTED | Rpc::RESOURCE_EXHAUSTED => {
            (Code::Failed, "try again".to_owned())
        }
        _ => (
            Code::Failed,
            format!("`crab ps` shows how {id} is, its shim's log says more"),
        ),
    };
    CliError::new(code, format!("cannot {what} {id}"), describe(error), advice)
}

#[cfg(test)]
mod tests {
    use tokio::net::UnixListener;

    use super::*;

    #[tokio::test]
    async fn a_shim_that_hangs_up_and_goes_is_gone() {
        let dir = tempfile::tempdir().unwrap();
        let config = Config {
            run_dir: dir.path().to_path_buf(),
            ..Config::default()
        };
        let id = SandboxId::new("default", "c1").unwrap();
        let file = paths::sandbox_address(&config.run_dir, id.namespace(), id.id());
        let socket = dir.path().join("shim.sock");
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(&file, socket.as_os_str().as_encoded_bytes()).unwrap();
        let dying = UnixListener::bind(&socket).unwrap();
        let hangs_up = tokio::spawn(async move {
            for _ in 0..3 {
                drop(dying.accept().await.unwrap());
            }
        });
        let found = Live::find(&config, &id).await;
        assert!(matches!(found, Err(NoAnswer::Gone)));
        hangs_up.await.unwrap();
    }
}

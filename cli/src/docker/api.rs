// SPDX-License-Identifier: Apache-2.0

//! Docker's API, as far as `crab` makes containers by it: what no command line of Docker's
//! does is to make a container as another one is.

use std::{io::ErrorKind, path::PathBuf, time::Duration};

use http_body_util::{BodyExt, Full, Limited};
use hyper::{
    Method, Request, StatusCode,
    body::Bytes,
    client::conn::http1,
    header::{CONTENT_TYPE, HOST},
};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::{net::UnixStream, time::timeout};

/// Where dockerd listens, unless this variable names another socket; as for `docker`.
const SOCKET: &str = "/var/run/docker.sock";
const SOCKET_VARIABLE: &str = "DOCKER_HOST";
/// For how long a call may take. A start with much memory takes its time.
const TIMEOUT: Duration = Duration::from_secs(120);
/// The largest answer that is read.
const MAX_ANSWER: usize = 16 << 20;

/// dockerd.
#[derive(Clone, Debug)]
pub(crate) struct Docker {
    socket: PathBuf,
}

/// What Docker said, in one line.
#[derive(Debug)]
pub(crate) struct Refusal {
    pub(crate) status: Option<StatusCode>,
    /// Nobody is there to answer, or not yet.
    pub(crate) is_unavailable: bool,
    said: String,
}

impl From<Refusal> for String {
    fn from(refusal: Refusal) -> Self {
        refusal.said
    }
}

impl Docker {
    /// As the environment says; a Docker elsewhere cannot be the one of this host's containers.
    pub(crate) fn here() -> Result<Self, String> {
        let socket = match std::env::var(SOCKET_VARIABLE) {
            Ok(host) if !host.is_empty() => match host.strip_prefix("unix://") {
                Some(socket) => socket.into(),
                None => {
                    return Err(format!(
                        "{SOCKET_VARIABLE}={host} is no socket of this host"
                    ));
                }
            },
            _ => SOCKET.into(),
        };
        Ok(Self { socket })
    }

    /// Everything about a container.
    pub(crate) async fn inspect(&self, container: &str) -> Result<Value, Refusal> {
        let path = format!("/containers/{container}/json");
        self.call(Method::GET, &path, None).await
    }

    /// Everything about an image.
    pub(crate) async fn inspect_image(&self, image: &str) -> Result<Value, Refusal> {
        let path = format!("/images/{image}/json");
        self.call(Method::GET, &path, None).await
    }

    /// All containers.
    pub(crate) async fn containers(&self) -> Result<Value, Refusal> {
        self.call(Method::GET, "/containers/json?all=1", None).await
    }

    /// Makes a container; gives its id.
    pub(crate) async fn create(&self, name: &str, config: &Value) -> Result<String, Refusal> {
        let path = format!("/containers/create?name={name}");
        let created = self.call(Method::POST, &path, Some(config)).await?;
        match created["Id"].as_str() {
            Some(id) => Ok(id.to_owned()),
            None => Err(refused(&path, "it told no id")),
        }
    }

    pub(crate) async fn start(&self, container: &str) -> Result<(), Refusal> {
        let path = format!("/containers/{container}/start");
        self.call(Method::POST, &path, None).await.map(drop)
    }

    /// Stops a container's processes where they are.
    pub(crate) async fn pause(&self, container: &str) -> Result<(), Refusal> {
        let path = format!("/containers/{container}/pause");
        self.call(Method::POST, &path, None).await.map(drop)
    }

    /// Lets them go on.
    pub(crate) async fn unpause(&self, container: &str) -> Result<(), Refusal> {
        let path = format!("/containers/{container}/unpause");
        self.call(Method::POST, &path, None).await.map(drop)
    }

    /// Gives a container another name.
    pub(crate) async fn rename(&self, container: &str, name: &str) -> Result<(), Refusal> {
        let path = format!("/containers/{container}/rename?name={name}");
        self.call(Method::POST, &path, None).await.map(drop)
    }

    /// Removes a container with its anonymous volumes, whatever its state.
    pub(crate) async fn remove(&self, container: &str) -> Result<(), Refusal> {
        let path = format!("/containers/{container}?force=1&v=1");
        self.call(Method::DELETE, &path, None).await.map(drop)
    }

    async fn call(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Result<Value, Refusal> {
        match timeout(TIMEOUT, self.exchange(method, path, body)).await {
            Ok(answer) => answer,
            Err(_) => {
                let seconds = TIMEOUT.as_secs();
                Err(refused(path, format!("no answer within {seconds} s")))
            }
        }
    }

    async fn exchange(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Result<Value, Refusal> {
        let stream = UnixStream::connect(&self.socket).await.map_err(|error| {
            let socket = self.socket.display();
            let why = format!("cannot reach dockerd at {socket}: {error}");
            Refusal {
                is_unavailable: matches!(
                    error.kind(),
                    ErrorKind::NotFound | ErrorKind::ConnectionRefused
                ),
                ..refused(path, why)
            }
        })?;
        let failed = |error: &dyn std::fmt::Display| refused(path, error);
        let gone = |error: hyper::Error| Refusal {
            is_unavailable: true,
            ..refused(path, error)
        };
        let (mut sender, connection) =
            http1::handshake(TokioIo::new(stream)).await.map_err(gone)?;
        // It ends with the sender.
        tokio::spawn(connection);
        let body = body.map(Value::to_string).unwrap_or_default();
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header(HOST, "docker")
            .header(CONTENT_TYPE, "application/json")
            .body(Full::new(Bytes::from(body)))
            .map_err(|error| failed(&error))?;
        let answer = sender.send_request(request).await.map_err(gone)?;
        let status = answer.status();
        let bytes = Limited::new(answer.into_body(), MAX_ANSWER)
            .collect()
            .await
            .map_err(|error| failed(&error))?
            .to_bytes();
        let said: Value = serde_json::from_slice(&bytes).unwrap_or_default();
        // 304 is "it runs already".
        if status.is_success() || status == StatusCode::NOT_MODIFIED {
            return Ok(said);
        }
        let why = said["message"].as_str().unwrap_or(status.as_str());
        Err(Refusal {
            status: Some(status),
            is_unavailable: status == StatusCode::SERVICE_UNAVAILABLE,
            said: why.to_owned(),
        })
    }
}

fn refused(path: &str, why: impl std::fmt::Display) -> Refusal {
    Refusal {
        status: None,
        is_unavailable: false,
        said: format!("{path}: {why}"),
    }
}

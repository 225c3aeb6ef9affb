// SPDX-License-Identifier: Apache-2.0
//! The client side of a connection to crabd or to a shim.

use std::path::{Path, PathBuf};

use thiserror::Error;
use ttrpc::r#async::Client;

/// Why no connection could be made.
#[derive(Debug, Error)]
pub enum ConnectError {
    /// Nobody listens there.
    #[error("connect to {path}: {source}")]
    Connect {
        /// The socket.
        path: PathBuf,
        /// What the kernel said.
        source: std::io::Error,
    },
    /// The ttrpc client could not be built on the socket.
    #[error("ttrpc on {path}: {source}")]
    Ttrpc {
        /// The socket.
        path: PathBuf,
        /// What ttrpc said.
        source: ttrpc::Error,
    },
}

/// Connects to the unix socket `path` (a leading `unix://` is accepted, as
/// shims write it into their address files).
///
/// # Errors
/// When nobody listens on the socket.
pub async fn connect(path: &Path) -> Result<Client, ConnectError> {
    let path = path
        .to_str()
        .and_then(|p| p.strip_prefix("unix://"))
        .map_or_else(|| path.to_path_buf(), PathBuf::from);
    // Dialled here rather than by ttrpc, whose own error hides the reason.
    let stream = tokio::net::UnixStream::connect(&path)
        .await
        .map_err(|source| ConnectError::Connect {
            path: path.clone(),
            source,
        })?;
    Ok(Client::new(stream.into()))
}

// SPDX-License-Identifier: Apache-2.0
//! What systemd wants to know of a service of `Type=notify`: sd_notify(3),
//! which is one datagram.

use std::env;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

use tracing::warn;

const NOTIFY_SOCKET: &str = "NOTIFY_SOCKET";

/// It serves.
pub(crate) const READY: &str = "READY=1";
/// It is on its way out.
pub(crate) const STOPPING: &str = "STOPPING=1";

/// Tells whoever started this process, if that wants to know.
pub(crate) fn tell(state: &str) {
    if let Err(error) = try_tell(state) {
        warn!("tell the service manager {state}: {error}");
    }
}

fn try_tell(state: &str) -> io::Result<()> {
    let Some(name) = env::var_os(NOTIFY_SOCKET).filter(|name| !name.is_empty()) else {
        return Ok(());
    };
    // An abstract socket is written with an @.
    let address = match name.as_bytes() {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
        _ => SocketAddr::from_pathname(&name)?,
    };
    UnixDatagram::unbound()?.send_to_addr(state.as_bytes(), &address)?;
    Ok(())
}

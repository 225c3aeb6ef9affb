// SPDX-License-Identifier: Apache-2.0

//! Being told to end, while something half done has to be taken back first.

use tokio::signal::unix::{SignalKind, signal};

/// Waits for an interrupt or a termination. False if none can be waited for.
pub(crate) async fn wait() -> bool {
    let (Ok(mut interrupt), Ok(mut terminate)) = (
        signal(SignalKind::interrupt()),
        signal(SignalKind::terminate()),
    ) else {
        return false;
    };
    tokio::select! {
        _ = interrupt.recv() => true,
        _ = terminate.recv() => true,
    }
}

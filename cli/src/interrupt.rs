// SPDX-License-Identifier: Apache-2.0

//! Being told to end, while something half done has to be taken back first.

use tokio::{
    signal::unix::{SignalKind, signal},
    sync::watch,
};

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

/// Turns true when the user has lost patience. For whoever does several things at once.
pub(crate) fn told() -> watch::Receiver<bool> {
    let (interrupted, told) = watch::channel(false);
    tokio::spawn(async move {
        if wait().await {
            let _ = interrupted.send(true);
        }
        // Kept: who waits for it must not see it closed.
        interrupted.closed().await;
    });
    told
}

// SPDX-License-Identifier: Apache-2.0

//! A pod, as the CRI of containerd makes one by its annotations.

use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Result, ensure};
use crab_integration::{BUSYBOX, Client, RunOptions, Sandbox, processes};

/// A pod's pause container. Its other containers have to be dropped before it.
pub(crate) struct Pod {
    client: Client,
    pub(crate) pause: Sandbox,
}

impl Pod {
    pub(crate) fn start(client: Client) -> Result<Self> {
        // The CRI knows the id before it starts anything; here the name has to be given.
        static PODS: AtomicU32 = AtomicU32::new(1);
        let id = format!("pod{}", PODS.fetch_add(1, Ordering::Relaxed));
        let options = RunOptions::new().id(&id).flags(annotations(&id, "sandbox"));
        Ok(Self {
            client,
            pause: client.run(BUSYBOX, options)?,
        })
    }

    /// One of its containers, in these namespaces of the pause's beside those that all
    /// containers of a pod share.
    pub(crate) fn run_in(&self, image: &str, shared: &[&str]) -> Result<Sandbox> {
        let mut options = RunOptions::new().flags(annotations(self.pause.id(), "container"));
        let pause = self.pause.pid()?;
        for kind in ["net", "ipc", "uts"].iter().chain(shared) {
            let name = if *kind == "net" { "network" } else { kind };
            let namespace = format!("{name}:/proc/{pause}/ns/{kind}");
            options = options.flags(["--with-ns".to_owned(), namespace]);
        }
        self.client.run(image, options)
    }

    /// One of its containers.
    pub(crate) fn run(&self, image: &str) -> Result<Sandbox> {
        self.run_in(image, &[])
    }

    /// The one shim of this pod, the only one of the host.
    pub(crate) fn shim(&self) -> Result<u32> {
        let shims = processes::named(processes::SHIM);
        ensure!(shims.len() == 1, "a pod has these shims: {shims:?}");
        Ok(shims[0])
    }
}

fn annotations(pod: &str, kind: &str) -> [String; 4] {
    [
        "--annotation".into(),
        format!("io.kubernetes.cri.sandbox-id={pod}"),
        "--annotation".into(),
        format!("io.kubernetes.cri.container-type={kind}"),
    ]
}

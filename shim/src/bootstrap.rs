// SPDX-License-Identifier: Apache-2.0
//! What containerd tells `start` on its standard input, and how it wants the answer.
//!
//! | containerd | input | answer |
//! | --- | --- | --- |
//! | 1.6 to 2.2 | the runtime's options (`Any`), or nothing | the bare address |
//! | 2.3 and newer | `BootstrapParams` | `BootstrapResult` |
//!
//! No version sends something by which 2.0 could be told from 1.7, which refuses a
//! shim that says 3: so the answer always says version 2 of the Task service (a bare
//! address does), which all of them speak. It has containerd run `start` and `delete`
//! for each container of a pod; under version 3 it would do neither, and what a dead
//! shim leaves of the pod's containers would stay.

use std::path::{Path, PathBuf};

use containerd_shim_protos::{
    bootstrap_api::{BootstrapParams, BootstrapResult},
    protobuf::{Message, well_known_types::any::Any},
};

use crate::args::Args;

/// Where shims listen if nothing else is said. Short, because a socket's address holds
/// 107 bytes.
const SOCKET_DIR: &str = "/run/containerd/s";

/// How much of the input is read, in bytes: far more than any containerd sends.
pub(crate) const INPUT_LIMIT: u64 = 10 << 20;

/// What is known of the caller.
#[derive(Debug, PartialEq)]
pub(crate) struct Caller {
    socket_dir: PathBuf,
    protobuf: bool,
    options: Option<Any>,
}

impl Caller {
    /// Reads what came on standard input. Options of a runtime parse as parameters,
    /// too: those name the container that the command line names.
    pub(crate) fn of(input: &[u8], args: &Args) -> Self {
        let params = BootstrapParams::parse_from_bytes(input)
            .ok()
            .filter(|p| p.instance_id == args.id && p.namespace == args.namespace);
        let options = match &params {
            // The one that is understood, if any: others are for other shims.
            Some(params) => params
                .extensions
                .iter()
                .filter_map(|extension| extension.value.as_ref())
                .find(|any| any.type_url.ends_with("v1.Options"))
                .cloned(),
            None => Any::parse_from_bytes(input).ok(),
        };
        Self {
            protobuf: params.is_some(),
            options,
            socket_dir: params
                .and_then(|p| p.socket_dir)
                .map(PathBuf::from)
                .filter(|dir| dir.is_absolute())
                .unwrap_or_else(|| SOCKET_DIR.into()),
        }
    }

    /// Where the shim's socket shall be.
    pub(crate) fn socket_dir(&self) -> &Path {
        &self.socket_dir
    }

    /// The runtime's options.
    pub(crate) fn options(&self) -> Option<&Any> {
        self.options.as_ref()
    }

    /// The answer, as this caller understands it.
    pub(crate) fn answer(&self, address: &str) -> Vec<u8> {
        if !self.protobuf {
            return address.as_bytes().to_vec();
        }
        let result = BootstrapResult {
            version: 2,
            address: address.into(),
            protocol: "ttrpc".into(),
            ..Default::default()
        };
        // Only a message that lacks required fields cannot be written, and proto3
        // has none.
        result.write_to_bytes().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use containerd_shim_protos::{bootstrap_api::Extension, protobuf::MessageField};

    use super::*;

    fn args() -> Args {
        let line = "-namespace k8s.io -id a1 start";
        crate::args::parse(line.split(' ').map(String::from)).unwrap()
    }

    #[test]
    fn who_sends_options_or_nothing_gets_the_bare_address() {
        let options = Any {
            type_url: "containerd.runc.v1.Options".into(),
            value: vec![8, 1],
            ..Default::default()
        };
        for input in [Vec::new(), options.write_to_bytes().unwrap()] {
            let caller = Caller::of(&input, &args());
            assert_eq!(caller.socket_dir(), Path::new(SOCKET_DIR));
            assert_eq!(caller.answer("unix:///s"), b"unix:///s");
            let sent = caller.options().filter(|any| !any.value.is_empty());
            assert_eq!(sent, Some(&options).filter(|_| !input.is_empty()));
        }
    }

    #[test]
    fn who_sends_parameters_gets_a_result_and_its_socket_directory() {
        let mut params = BootstrapParams {
            instance_id: "a1".into(),
            namespace: "k8s.io".into(),
            socket_dir: Some("/run/s".into()),
            ..Default::default()
        };
        let options = Any {
            type_url: "type.googleapis.com/containerd.runc.v1.Options".into(),
            value: vec![8, 1],
            ..Default::default()
        };
        params.extensions.push(Extension {
            value: MessageField::some(options.clone()),
            ..Default::default()
        });
        let caller = Caller::of(&params.write_to_bytes().unwrap(), &args());
        assert_eq!(caller.socket_dir(), Path::new("/run/s"));
        assert_eq!(caller.options(), Some(&options));
        let result = BootstrapResult::parse_from_bytes(&caller.answer("unix:///s")).unwrap();
        assert_eq!(
            (result.version, result.address, result.protocol),
            (2, "unix:///s".into(), "ttrpc".into())
        );
        params.instance_id = "another".into();
        let other = Caller::of(&params.write_to_bytes().unwrap(), &args());
        assert_eq!(other.answer("unix:///s"), b"unix:///s");
    }
}

// SPDX-License-Identifier: Apache-2.0
//! What containerd 2.x asks a runtime about itself (`-info`): name, version, its options
//! back, and what the OCI runtime can do.

use std::{path::Path, process::Stdio};

use containerd_shim_protos::{
    protobuf::{Message, MessageField, well_known_types::any::Any},
    types::introspection::{RuntimeInfo, RuntimeVersion},
};
use crab_runtime::driver::Program;
use serde_json::Value;

use crate::options::RuntimeOptions;

/// How Go's typeurl names the OCI features structure.
const FEATURES: &str = "types.containerd.io/opencontainers/runtime-spec/1/features/Features";

/// The answer. `input` is what came on standard input: the options, or nothing;
/// `configured` is the runtime where they name none.
pub(crate) fn info(input: &[u8], configured: Option<&Path>) -> RuntimeInfo {
    let options = Any::parse_from_bytes(input)
        .ok()
        .filter(|any| !any.type_url.is_empty());
    let named = RuntimeOptions::of_request(options.as_ref())
        .ok()
        .and_then(|options| options.program());
    let features = features(&Program::named(named.as_deref().or(configured)));
    RuntimeInfo {
        name: "io.containerd.crab.v1".into(),
        version: MessageField::some(RuntimeVersion {
            version: env!("CARGO_PKG_VERSION").into(),
            ..Default::default()
        }),
        options: MessageField(options.map(Box::new)),
        features: MessageField(features.map(Box::new)),
        ..Default::default()
    }
}

/// What the runtime says of itself; nothing if it does not.
fn features(program: &Program) -> Option<Any> {
    let said = program
        .command()
        .arg("features")
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .output()
        .ok()?;
    let is_json = serde_json::from_slice::<Value>(&said.stdout).is_ok_and(|v| v.is_object());
    (said.status.success() && is_json).then(|| Any {
        type_url: FEATURES.into(),
        value: said.stdout,
        ..Default::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_runtime_that_says_nothing_is_no_error_and_options_come_back() {
        let options = Any {
            type_url: "containerd.runc.v1.Options".into(),
            value: vec![8, 1],
            ..Default::default()
        };
        let input = options.write_to_bytes().unwrap();
        let said = info(&input, Some(Path::new("/no/such/runtime")));
        assert_eq!(said.options.as_ref(), Some(&options));
        assert!(said.features.is_none());
        assert!(info(b"", Some(Path::new("/bin/true"))).features.is_none());
    }
}

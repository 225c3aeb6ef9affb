// SPDX-License-Identifier: Apache-2.0

//! The specification of a copy: what in the original's names the original. Pure.

use serde_json::{Value, json};

/// The OCI specification of a container called `copy`, of that of one called `original`.
/// What is not known here stays as it is.
pub(super) fn of_copy(spec: &[u8], original: &str, copy: &str) -> Result<Vec<u8>, String> {
    let mut spec: Value = serde_json::from_slice(spec)
        .map_err(|error| format!("the original's specification is no JSON: {error}"))?;
    // Its own name is what it was called by default; any other was chosen.
    if spec["hostname"] == original {
        spec["hostname"] = json!(copy);
    }
    if let Some(Value::String(path)) = spec.pointer_mut("/linux/cgroupsPath") {
        *path = cgroup(path, copy);
    }
    serde_json::to_vec(&spec).map_err(|error| error.to_string())
}

/// Beside the original's: `/default/a`, or `system.slice:docker:a` of systemd's.
fn cgroup(path: &str, copy: &str) -> String {
    match path.rfind(['/', ':']) {
        Some(at) => format!("{}{copy}", &path[..=at]),
        None => copy.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_has_a_cgroup_of_its_own_and_its_own_name() {
        for (path, expected) in [
            ("/default/one", "/default/two"),
            ("/custom/place", "/custom/two"),
            ("system.slice:crab:one", "system.slice:crab:two"),
        ] {
            let spec = json!({
                "hostname": "one",
                "x-unknown": {"kept": [1, 2]},
                "linux": {"cgroupsPath": path},
            });
            let copy = of_copy(spec.to_string().as_bytes(), "one", "two").unwrap();
            let copy: Value = serde_json::from_slice(&copy).unwrap();
            assert_eq!(copy["hostname"], "two");
            assert_eq!(copy["linux"]["cgroupsPath"], expected);
            assert_eq!(copy["x-unknown"], json!({"kept": [1, 2]}));
        }
    }

    #[test]
    fn a_host_name_that_was_chosen_stays_and_none_stays_none() {
        let copy = of_copy(br#"{"hostname": "agent", "linux": {}}"#, "one", "two").unwrap();
        let copy: Value = serde_json::from_slice(&copy).unwrap();
        assert_eq!(copy["hostname"], "agent");
        let copy = of_copy(br#"{"linux": {}}"#, "one", "two").unwrap();
        assert_eq!(copy, br#"{"linux":{}}"#);
        assert!(of_copy(b"{", "one", "two").is_err());
    }
}

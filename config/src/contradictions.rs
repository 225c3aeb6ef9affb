// SPDX-License-Identifier: Apache-2.0

//! Settings that are right each by itself and wrong together.

use std::path::Path;

use crate::Config;

/// The directory of sandboxes in the store and in the run directory.
const SANDBOXES: &str = "sandboxes";

/// Each contradiction: the settings that make it, the more telling one first, and
/// what is wrong.
pub(crate) fn contradictions(config: &Config) -> Vec<(&'static [&'static str], String)> {
    let mut found: Vec<(&'static [&'static str], String)> = Vec::new();
    let within = |inner: &Path, outer: &Path| inner.starts_with(outer);
    let (store, run_dir) = (&config.store, &config.run_dir);
    if within(store, run_dir) || within(run_dir, store) {
        let why = format!(
            "store ({}) and run_dir ({}) must not be in one another: what is in run_dir is gone after a boot",
            store.display(),
            run_dir.display()
        );
        found.push((&["run_dir", "store"], why));
    }
    let Some(staging) = &config.checkpoints.staging_dir else {
        return found;
    };
    // What is in it is removed by the names of sandboxes, `<namespace>/<id>`. One
    // that is called as a directory of Crab's own must not take that away.
    for (name, dir) in [("store", store), ("run_dir", run_dir)] {
        if within(dir, staging) || within(staging, &dir.join(SANDBOXES)) {
            let why = format!(
                "checkpoints.staging_dir ({}) must not hold {name} ({}) or lie in its {SANDBOXES}: what is staged is removed",
                staging.display(),
                dir.display()
            );
            let settings: &[&str] = match name {
                "store" => &["checkpoints.staging_dir", "store"],
                _ => &["checkpoints.staging_dir", "run_dir"],
            };
            found.push((settings, why));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(store: &str, run_dir: &str, staging: Option<&str>) -> usize {
        let mut config = Config {
            store: store.into(),
            run_dir: run_dir.into(),
            ..Config::default()
        };
        config.checkpoints.staging_dir = staging.map(Into::into);
        contradictions(&config).len()
    }

    #[test]
    fn the_store_and_the_run_directory_are_apart() {
        assert_eq!(of("/var/lib/crab", "/run/crab", None), 0);
        assert_eq!(of("/x", "/x", None), 1);
        assert_eq!(of("/x/store", "/x", None), 1);
        assert_eq!(of("/x", "/x/run", None), 1);
        assert_eq!(of("/x", "/xy", None), 0);
    }

    #[test]
    fn what_is_staged_is_where_nothing_else_is() {
        for fine in [
            "/fast",
            "/run/crab/staging",
            "/var/lib/crab/staging",
            "/run/crab/s",
        ] {
            assert_eq!(of("/var/lib/crab", "/run/crab", Some(fine)), 0, "{fine}");
        }
        for wrong in [
            "/run/crab",
            "/run",
            "/var/lib/crab/sandboxes",
            "/run/crab/sandboxes/x",
        ] {
            assert_eq!(of("/var/lib/crab", "/run/crab", Some(wrong)), 1, "{wrong}");
        }
        assert_eq!(of("/var/lib/crab", "/run/crab", Some("/")), 2);
    }
}

// SPDX-License-Identifier: Apache-2.0

//! Which sandbox a user means.

use std::collections::BTreeMap;

use crab_store::SandboxId;

use crate::error::{CliError, Code};

/// How many candidates an error names.
const MAX_NAMED: usize = 4;

/// Finds the one sandbox that `text` means: by its id, then by a name that
/// Docker gave it, then by the beginning of its id. `names` is only asked when
/// no id fits.
pub(crate) fn resolve(
    text: &str,
    sandboxes: &[SandboxId],
    names: impl FnOnce(&[SandboxId]) -> BTreeMap<SandboxId, String>,
) -> Result<SandboxId, CliError> {
    let (namespace, id) = match text.split_once('/') {
        Some((namespace, id)) => (Some(namespace), id),
        None => (None, text),
    };
    let within: Vec<&SandboxId> = sandboxes
        .iter()
        .filter(|sandbox| namespace.is_none_or(|namespace| sandbox.namespace() == namespace))
        .collect();
    let exact = within.iter().copied().filter(|s| s.id() == id);
    if let Some(found) = one(text, exact)? {
        return Ok(found);
    }
    let names = names(sandboxes);
    let named = within
        .iter()
        .copied()
        .filter(|s| names.get(s).is_some_and(|name| name == id));
    if let Some(found) = one(text, named)? {
        return Ok(found);
    }
    let begins: Vec<&SandboxId> = within
        .iter()
        .copied()
        .filter(|s| !id.is_empty() && s.id().starts_with(id))
        .collect();
    // Where both fit, the history of an earlier sandbox of the same name is not
    // meant.
    let earlier = |s: &SandboxId| begins.iter().any(|now| *now != s && s.is_or_was(now));
    let begins = begins.iter().copied().filter(|s| !earlier(s));
    one(text, begins)?.ok_or_else(|| {
        CliError::new(
            Code::NotFound,
            format!("no sandbox {text}"),
            "the store has none of that id or name",
            "`crab ps` lists the sandboxes",
        )
    })
}

fn one<'a>(
    text: &str,
    candidates: impl Iterator<Item = &'a SandboxId>,
) -> Result<Option<SandboxId>, CliError> {
    let candidates: Vec<_> = candidates.collect();
    match candidates.as_slice() {
        [] => Ok(None),
        [found] => Ok(Some((*found).clone())),
        several => {
            let named: Vec<String> = several
                .iter()
                .take(MAX_NAMED)
                .map(|s| s.to_string())
                .collect();
            let more = if several.len() > MAX_NAMED {
                ", ..."
            } else {
                ""
            };
            Err(CliError::new(
                Code::NotFound,
                format!("which sandbox {text}"),
                format!("it may be {}{more}", named.join(", ")),
                "say <namespace>/<id>, or more of the id",
            ))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find(text: &str) -> Result<String, String> {
        let sandboxes: Vec<SandboxId> = [
            "a/demo",
            "a/demo.1700000000000",
            "a/old.1",
            "b/demo",
            "b/demo-2",
            "moby/c0ffee",
            "moby/c0de",
        ]
        .iter()
        .map(|id| id.parse().unwrap())
        .collect();
        let names = |_: &[SandboxId]| {
            let named = |id: &str, name: &str| (id.parse().unwrap(), name.to_owned());
            [named("moby/c0ffee", "web"), named("moby/c0de", "c0ff")].into()
        };
        resolve(text, &sandboxes, names)
            .map(|id| id.to_string())
            .map_err(|error| error.to_string())
    }

    #[test]
    fn an_id_comes_before_a_name_and_a_name_before_a_beginning() {
        for (text, found) in [
            ("a/demo", "a/demo"),
            ("demo-2", "b/demo-2"),
            ("demo-", "b/demo-2"),
            ("b/demo", "b/demo"),
            ("a/de", "a/demo"),
            ("demo.17", "a/demo.1700000000000"),
            ("old", "a/old.1"),
            ("web", "moby/c0ffee"),
            ("moby/web", "moby/c0ffee"),
            ("c0ff", "moby/c0de"),
            ("c0f", "moby/c0ffee"),
        ] {
            assert_eq!(find(text).as_deref(), Ok(found), "{text}");
        }
    }

    #[test]
    fn what_is_unclear_is_refused_with_the_candidates() {
        assert_eq!(
            find("demo").unwrap_err(),
            "crab: which sandbox demo: it may be a/demo, b/demo; say <namespace>/<id>, or more of the id"
        );
        assert!(find("c0").unwrap_err().contains("moby/c0ffee, moby/c0de"));
        for text in ["", "/", "a/", "nope", "c/demo", "moby/demo"] {
            assert!(
                find(text).unwrap_err().starts_with("crab: no sandbox"),
                "{text}"
            );
        }
    }
}

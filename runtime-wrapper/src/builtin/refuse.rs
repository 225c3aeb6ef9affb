// SPDX-License-Identifier: Apache-2.0
//! What a container may ask for that libcontainer would do wrongly or silently leave
//! out: refused before anything of the container is made.

use libcontainer::oci_spec::runtime::{
    LinuxNamespaceType, LinuxSeccomp, LinuxSeccompAction, Process, Spec,
};

use super::{Failure, hierarchies, options::Options};

/// Refuses a container as a whole.
pub(super) fn container(spec: &Spec, options: &Options) -> Result<(), Failure> {
    let linux = spec.linux().as_ref();
    let namespaces = linux.and_then(|linux| linux.namespaces().as_ref());
    if namespaces
        .into_iter()
        .flatten()
        .any(|namespace| namespace.typ() == LinuxNamespaceType::User)
    {
        // libcontainer's execs do not enter it: they would be the host's root.
        return Err(Failure::Refused("user namespaces"));
    }
    if linux.is_some_and(|linux| is_label(linux.mount_label().as_ref())) {
        return Err(Failure::Refused("SELinux labels"));
    }
    if linux
        .and_then(|linux| linux.seccomp().as_ref())
        .is_some_and(notifies)
    {
        // An exec could not hand its descriptor over.
        return Err(Failure::Refused("seccomp notification"));
    }
    if options.systemd_cgroup && !hierarchies::is_unified() {
        return Err(Failure::Refused("cgroups made by systemd on cgroup v1"));
    }
    spec.process().as_ref().map_or(Ok(()), process)
}

/// Refuses a process, be it the init's or an exec's.
pub(super) fn process(process: &Process) -> Result<(), Failure> {
    if is_label(process.selinux_label().as_ref()) {
        return Err(Failure::Refused("SELinux labels"));
    }
    Ok(())
}

fn is_label(label: Option<&String>) -> bool {
    label.is_some_and(|label| !label.is_empty())
}

fn notifies(seccomp: &LinuxSeccomp) -> bool {
    let rules = seccomp.syscalls().iter().flatten();
    seccomp.listener_path().is_some()
        || rules
            .map(|rule| rule.action())
            .chain([seccomp.default_action()])
            .any(|action| action == LinuxSeccompAction::ScmpActNotify)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn refusal(linux: Value, process: Value) -> Option<String> {
        let mut spec = json!({
            "ociVersion": "1.1.0",
            "process": {"cwd": "/", "args": ["x"], "user": {"uid": 0, "gid": 0}},
            "root": {"path": "rootfs"},
            "linux": linux,
        });
        if let (Some(into), Some(from)) = (spec["process"].as_object_mut(), process.as_object()) {
            into.extend(from.clone());
        }
        let spec = serde_json::from_value(spec).unwrap();
        container(&spec, &Options::default())
            .err()
            .map(|failure| failure.to_string())
    }

    #[test]
    fn what_would_be_wrong_is_refused_and_says_who_can() {
        let none = json!({});
        assert_eq!(
            refusal(json!({"namespaces": [{"type": "pid"}]}), none.clone()),
            None
        );
        let seccomp = json!({"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [
            {"names": ["mkdir"], "action": "SCMP_ACT_NOTIFY"},
        ]});
        for (linux, process, what) in [
            (
                json!({"namespaces": [{"type": "user"}]}),
                none.clone(),
                "user namespaces",
            ),
            (
                json!({"seccomp": seccomp}),
                none.clone(),
                "seccomp notification",
            ),
            (
                json!({"mountLabel": "a:b:c"}),
                none.clone(),
                "SELinux labels",
            ),
            (
                json!({}),
                json!({"selinuxLabel": "a:b:c"}),
                "SELinux labels",
            ),
        ] {
            let said = refusal(linux, process).unwrap_or_default();
            assert!(
                said.contains(what) && said.contains("runc"),
                "{what}: {said}"
            );
        }
    }

    #[test]
    fn a_seccomp_profile_that_only_denies_is_taken() {
        let seccomp = json!({"defaultAction": "SCMP_ACT_ERRNO", "syscalls": [
            {"names": ["read"], "action": "SCMP_ACT_ALLOW"},
        ]});
        assert_eq!(refusal(json!({"seccomp": seccomp}), json!({})), None);
    }
}

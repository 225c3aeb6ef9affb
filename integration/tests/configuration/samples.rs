// SPDX-License-Identifier: Apache-2.0

//! The samples, as the daemons of this host run with them.

use anyhow::{Context, Result, ensure};
use crab_integration::{
    BUSYBOX, ContainerOptions, DEBIAN, PodOptions, RunOptions, Runtime, Swapped, Testbed,
};
use crab_store::Class;
use serde_json::Value;

#[test]
fn docker_runs_containers_under_crab_by_the_name_in_its_configuration() -> Result<()> {
    let testbed = Testbed::here()?;
    let crab = testbed.crab();
    // The last one counts.
    let options = RunOptions::new().flags(["--runtime", "crab"]);
    let sandbox = testbed.docker().run(BUSYBOX, options)?;
    let format = "{{.HostConfig.Runtime}}";
    let inspect = ["inspect", "-f", format, sandbox.name()];
    assert_eq!(testbed.docker().tool(inspect).run()?.text()?, "crab");
    crab.turn_of(&sandbox, Class::Files, "echo x >/root/x")?;
    crab.rollback(&sandbox, 0)?;
    assert_eq!(sandbox.sh("cat /root/x")?.status, 1);
    Ok(())
}

#[test]
fn the_sample_of_crabs_own_configuration_is_the_defaults() -> Result<()> {
    let testbed = Testbed::here()?;
    let _alone = testbed.alone();
    let crab = testbed.crab();
    let sample = include_str!("../../../config/samples/config.toml");
    let _config = Swapped::with("/etc/crab/config.toml", sample)?;
    for client in testbed.clients() {
        let sandbox = client.run(BUSYBOX, RunOptions::new())?;
        crab.turn_of(&sandbox, Class::Files, "echo x >/root/x")?;
        assert!(crab.ps_of(&sandbox)?.config_faults.is_empty());
    }
    Ok(())
}

/// The sample pod as the CRI is asked for it: a kubelet does so.
fn sample_pod() -> Result<(PodOptions, ContainerOptions)> {
    let class: Value = serde_saphyr::from_str(include_str!(
        "../../../config/samples/kubernetes/runtimeclass.yaml"
    ))?;
    let pod: Value =
        serde_saphyr::from_str(include_str!("../../../config/samples/kubernetes/pod.yaml"))?;
    ensure!(pod["spec"]["runtimeClassName"] == class["metadata"]["name"]);
    ensure!(class["handler"] == Runtime::Crab.handler());
    let annotations = pod["metadata"]["annotations"].as_object();
    let mut options = PodOptions::new();
    for (name, text) in annotations.context("no annotations")? {
        options = options.annotation(name, text.as_str().context("no text")?);
    }
    let command = pod["spec"]["containers"][0]["command"].as_array();
    let words = command.context("no command")?.iter();
    let words: Vec<&str> = words.filter_map(Value::as_str).collect();
    Ok((options, ContainerOptions::new().command(words)))
}

#[test]
fn the_sample_pod_runs_under_the_handler_and_its_annotations_arrive() -> Result<()> {
    let testbed = Testbed::here()?;
    let Some(cri) = testbed.cri()? else {
        return Ok(());
    };
    let crab = testbed.crab();
    let (options, container) = sample_pod()?;
    let pod = cri.pod(Runtime::Crab, options.clone())?;
    // In the place of the image that the sample names, which no registry here has.
    let agent = pod.run(DEBIAN, container.clone())?;
    crab.turn_of(agent.sandbox(), Class::Files, "echo x >/root/x")?;
    let faults = crab.ps_of(agent.sandbox())?.config_faults;
    ensure!(faults.is_empty(), "{faults:?}");
    let spec = std::fs::read_to_string(agent.sandbox().bundle().join("config.json"))?;
    let spec: Value = serde_json::from_str(&spec)?;
    let annotations = &spec["annotations"];
    ensure!(
        annotations["dev.crab.checkpoints.max_gate_ms"] == "500",
        "{annotations}"
    );

    // That it is Crab that reads them.
    let options = options
        .annotation("dev.crab.checkpoints.enabled", "false")
        .annotation("dev.crab.store", "/etc")
        .annotation("example.test/other", "x");
    let pod = cri.pod(Runtime::Crab, options)?;
    let agent = pod.run(DEBIAN, container)?;
    let refusal = crab.refusal(&["checkpoint", &agent.sandbox().sandbox_id()])?;
    let why = "switched off by an annotation";
    ensure!(refusal.line.contains(why), "{}", refusal.line);
    let faults = crab.ps_of(agent.sandbox())?.config_faults;
    ensure!(
        faults.len() == 1 && faults[0].contains("dev.crab.store"),
        "{faults:?}"
    );
    Ok(())
}

// SPDX-License-Identifier: Apache-2.0

//! A daemon or a shim is killed, under the stock shim and under Crab: what a user sees
//! of it is the same. In two things Crab does more: the stock shim loses an end that it
//! could not tell while containerd was away, as containerd has it deleted and shut down
//! before it tries again; and the socket of one that was killed is left.

use anyhow::{Context, Result, ensure};
use crab_integration::{
    BUSYBOX, Census, Client, Deaf, Events, ExecOptions, RunOptions, Runtime, Sandbox, State,
    Testbed, forget_fifos, poll, processes,
};

use crate::LIMIT;

/// What was seen, a line each.
type Seen = Vec<String>;

/// The scenario under each shim, which has to look the same.
fn same(
    testbed: &Testbed,
    client: Client,
    scenario: impl Fn(&Testbed, Client, Runtime) -> Result<Seen>,
) -> Result<Seen> {
    let [stock, crab] = [Runtime::Stock, Runtime::Crab].map(|runtime| {
        scenario(testbed, client, runtime)
            .with_context(|| format!("{} under {}", client.name(), runtime.name()))
    });
    let (stock, crab) = (stock?, crab?);
    ensure!(
        crab == stock,
        "{}: crab: {crab:#?}, stock: {stock:#?}",
        client.name()
    );
    println!("{}: {crab:?}", client.name());
    Ok(crab)
}

fn run(client: Client, runtime: Runtime) -> Result<Sandbox> {
    // dockerd needs a moment to find a containerd that was started again.
    poll("containers can be run", LIMIT, || {
        let said = client.run_rm(BUSYBOX, RunOptions::new().args(["true"]))?;
        Ok((said.status == 0).then_some(()))
    })?;
    client.run(BUSYBOX, RunOptions::new().runtime(runtime))
}

/// How Docker says that an init has ended.
fn docker_status(sandbox: &Sandbox) -> Result<Option<String>> {
    match sandbox.client() {
        Client::Docker => {
            let format = "{{.State.Status}} {{.State.ExitCode}}";
            let inspect = ["inspect", "-f", format, sandbox.name()];
            Ok(Some(sandbox.client().tool(inspect).run()?.text()?))
        }
        Client::Ctr { .. } => Ok(None),
    }
}

/// An exec works again: dockerd needs a moment to find containerd.
fn wait_for_exec(sandbox: &Sandbox) -> Result<()> {
    poll("an exec works", LIMIT, || {
        Ok((sandbox.sh("true")?.status == 0).then_some(()))
    })
}

/// How the end of a container's init was published: how often, and with which status.
fn ends(events: &Events, id: &str) -> Result<Seen> {
    let all = events.so_far()?;
    let of_init = all.iter().filter(|event| {
        event.topic == "/tasks/exit" && event.container() == Some(id) && event.payload["id"] == id
    });
    Ok(of_init
        .map(|event| format!("exit {}", event.payload["exit_status"]))
        .collect())
}

/// Of a container that is gone, under Crab.
fn nothing_is_left(before: &Census, runtime: Runtime) -> Result<()> {
    forget_fifos()?;
    let left = before.left_but(|line| {
        // The names of network namespaces that a killed dockerd had, which are no mounts
        // any more.
        let of_dockerd = line.contains(" /run/docker/netns") && !line.starts_with("mount ");
        let of_stock = runtime == Runtime::Stock && line.starts_with("socket /run/containerd/s/");
        of_dockerd || of_stock
    })?;
    ensure!(left.is_empty(), "left behind: {}", left.join(", "));
    Ok(())
}

/// containerd is killed under a container with an exec in it.
fn killed_containerd(testbed: &Testbed, client: Client, runtime: Runtime) -> Result<Seen> {
    let sandbox = run(client, runtime)?;
    let (shim, pid) = (sandbox.shim()?, sandbox.pid()?);
    let exec = sandbox.exec_start(&["sleep", "4321"], &ExecOptions::new())?;
    let exec_pid = poll("the exec runs", LIMIT, || {
        let inside = processes::in_pid_namespace_of(pid);
        let all = processes::all().into_iter();
        let mut ours = all.filter(|(pid, words)| {
            inside.contains(pid) && words.starts_with(&["sleep".into(), "4321".into()])
        });
        Ok(ours.next().map(|(pid, _)| pid))
    })?;
    testbed.service("kill", "containerd")?;
    testbed.service("start", "containerd")?;
    wait_for_exec(&sandbox)?;
    let mut seen = vec![
        format!("it is {:?}", sandbox.state()?),
        format!("the same shim: {}", sandbox.shim()? == shim),
        format!("the same init: {}", sandbox.pid()? == pid),
        format!("the exec lives: {}", processes::is_alive(exec_pid)),
        format!("an exec ends with {}", sandbox.sh("exit 7")?.status),
    ];
    drop(exec);
    let events = testbed.events()?;
    sandbox.stop()?;
    seen.extend(ends(&events, sandbox.id())?);
    seen.extend(docker_status(&sandbox)?);
    sandbox.remove()?;
    Ok(seen)
}

#[test]
fn a_killed_containerd_leaves_its_containers_as_under_the_stock_shim() -> Result<()> {
    let testbed = Testbed::here()?;
    let _alone = testbed.alone();
    for client in testbed.clients() {
        let seen = same(&testbed, client, killed_containerd)?;
        ensure!(
            seen[..4]
                == [
                    "it is Running",
                    "the same shim: true",
                    "the same init: true",
                    "the exec lives: true"
                ]
        );
    }
    Ok(())
}

/// containerd is killed under a container that is paused.
fn killed_containerd_while_paused(
    testbed: &Testbed,
    client: Client,
    runtime: Runtime,
) -> Result<Seen> {
    let sandbox = run(client, runtime)?;
    let verb = |verb: &'static str| match client {
        Client::Docker => client.tool([verb, sandbox.name()]),
        Client::Ctr { .. } => client.tool([
            "task",
            if verb == "pause" { verb } else { "resume" },
            sandbox.id(),
        ]),
    };
    verb("pause").run()?.ok()?;
    testbed.service("kill", "containerd")?;
    testbed.service("start", "containerd")?;
    let mut seen = vec![format!("it is {:?}", sandbox.state()?)];
    poll("it goes on", LIMIT, || {
        Ok((verb("unpause").run()?.status == 0).then_some(()))
    })?;
    wait_for_exec(&sandbox)?;
    seen.push(format!("it is {:?}", sandbox.state()?));
    sandbox.remove()?;
    Ok(seen)
}

#[test]
fn a_paused_container_stays_so_over_a_killed_containerd_as_under_the_stock_shim() -> Result<()> {
    let testbed = Testbed::here()?;
    let _alone = testbed.alone();
    for client in testbed.clients() {
        let seen = same(&testbed, client, killed_containerd_while_paused)?;
        ensure!(seen == ["it is Paused", "it is Running"], "{seen:?}");
    }
    Ok(())
}

/// The init ends while containerd is away.
fn end_while_away(testbed: &Testbed, client: Client, runtime: Runtime) -> Result<Seen> {
    let before = Census::take()?;
    let sandbox = run(client, runtime)?;
    let (pid, shim) = (sandbox.pid()?, sandbox.shim()?);
    // Stopped, it would end its containers first.
    testbed.service("kill", "dockerd")?;
    testbed.service("kill", "containerd")?;
    processes::kill(pid)?;
    processes::wait_gone(pid, LIMIT)?;
    let deaf = Deaf::start(*testbed)?;
    let events = testbed.events()?;
    deaf.listen()?;
    if runtime == Runtime::Crab {
        poll("the end is published", LIMIT, || {
            Ok((!ends(&events, sandbox.id())?.is_empty()).then_some(()))
        })?;
    }
    testbed.service("start", "dockerd")?;
    poll("its client knows the end", LIMIT, || {
        Ok(matches!(sandbox.state()?, State::Stopped | State::Gone).then_some(()))
    })?;
    let mut seen = vec![format!("it is {:?}", sandbox.state()?)];
    seen.extend(docker_status(&sandbox)?);
    let id = sandbox.id().to_owned();
    sandbox.remove()?;
    processes::wait_gone(shim, LIMIT)?;
    // It cannot be sent a second time any more.
    let told = ends(&events, &id)?;
    match runtime {
        Runtime::Crab => ensure!(told == ["exit 137"], "{told:?}"),
        Runtime::Stock => ensure!(told.len() <= 1, "{told:?}"),
    }
    drop(deaf);
    nothing_is_left(&before, runtime)?;
    Ok(seen)
}

#[test]
fn an_end_while_containerd_is_away_is_told_once_as_by_the_stock_shim() -> Result<()> {
    let testbed = Testbed::here()?;
    let _alone = testbed.alone();
    for client in testbed.clients() {
        same(&testbed, client, end_while_away)?;
    }
    Ok(())
}

/// What is to be seen of a container whose shim is dead: how its end was told, how its
/// client says that it is, and that it can be removed with all that belonged to it.
fn after_the_shim(
    sandbox: Sandbox,
    runtime: Runtime,
    inside: &[u32],
    before: &Census,
    events: &Events,
) -> Result<Seen> {
    poll("its client knows the end", LIMIT, || {
        Ok(matches!(sandbox.state()?, State::Stopped | State::Gone).then_some(()))
    })?;
    for pid in inside {
        processes::wait_gone(*pid, LIMIT)?;
    }
    let mut seen = vec![format!("it is {:?}", sandbox.state()?)];
    seen.extend(docker_status(&sandbox)?);
    let id = sandbox.id().to_owned();
    sandbox.remove()?;
    nothing_is_left(before, runtime)?;
    seen.extend(ends(events, &id)?);
    Ok(seen)
}

/// The shim is killed, and containerd sees it.
fn killed_shim(testbed: &Testbed, client: Client, runtime: Runtime) -> Result<Seen> {
    let before = Census::take()?;
    let sandbox = run(client, runtime)?;
    let inside = sandbox.processes()?;
    let events = testbed.events()?;
    processes::kill(sandbox.shim()?)?;
    // containerd tells it after it has forgotten the task.
    poll("the end is published", LIMIT, || {
        Ok((!ends(&events, sandbox.id())?.is_empty()).then_some(()))
    })?;
    after_the_shim(sandbox, runtime, &inside, &before, &events)
}

#[test]
fn a_killed_shim_is_cleaned_up_after_as_the_stock_shim() -> Result<()> {
    let testbed = Testbed::here()?;
    let _alone = testbed.alone();
    for client in testbed.clients() {
        let seen = same(&testbed, client, killed_shim)?;
        let exits = seen.iter().filter(|line| line.starts_with("exit "));
        ensure!(exits.eq(["exit 137"]), "{seen:?}");
    }
    Ok(())
}

/// The shim is killed while containerd is away.
fn killed_shim_while_away(testbed: &Testbed, client: Client, runtime: Runtime) -> Result<Seen> {
    let before = Census::take()?;
    let sandbox = run(client, runtime)?;
    let (inside, shim) = (sandbox.processes()?, sandbox.shim()?);
    testbed.service("kill", "dockerd")?;
    testbed.service("kill", "containerd")?;
    processes::kill(shim)?;
    processes::wait_gone(shim, LIMIT)?;
    testbed.service("start", "containerd")?;
    testbed.service("start", "dockerd")?;
    let events = testbed.events()?;
    after_the_shim(sandbox, runtime, &inside, &before, &events)
}

#[test]
fn a_shim_killed_while_containerd_is_away_is_cleaned_up_after_as_the_stock_shim() -> Result<()> {
    let testbed = Testbed::here()?;
    let _alone = testbed.alone();
    for client in testbed.clients() {
        same(&testbed, client, killed_shim_while_away)?;
    }
    Ok(())
}

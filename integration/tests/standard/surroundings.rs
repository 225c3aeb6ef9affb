// SPDX-License-Identifier: Apache-2.0

//! What CRIU dumps only if it is told to, each option seen at work.

use std::{
    fs,
    os::unix::net::UnixDatagram,
    process::Command,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use containerd_shim_protos::shim::oci::CheckpointOptions;
use crab_integration::{DEBIAN, Testbed, poll, skip};

use crate::{
    LIMIT, Scratch, checkpointed, docker_place, docker_restore, keeper, python, refused, remembers,
    token,
};

#[test]
fn file_locks_are_held_again() -> Result<()> {
    let testbed = Testbed::here()?;
    let program = "import fcntl,time\nf=open('/root/locked','w'); fcntl.flock(f,fcntl.LOCK_EX)\n\
                   while True: time.sleep(1)";
    let sandbox = python(&testbed, program, &[])?;
    let is_locked = || -> Result<bool> {
        Ok(sandbox
            .exec(&["flock", "-n", "/root/locked", "true"])?
            .status
            == 1)
    };
    poll("it is locked", LIMIT, || Ok(is_locked()?.then_some(())))?;
    let without = CheckpointOptions::default();
    refused(
        &sandbox,
        &docker_place(&sandbox, "no"),
        without,
        "UNKNOWN",
        "file locks",
    )?;
    let with = CheckpointOptions {
        file_locks: true,
        ..Default::default()
    };
    checkpointed(&sandbox, &docker_place(&sandbox, "yes"), with)?;
    docker_restore(&sandbox, "yes")?;
    ensure!(is_locked()?, "the lock is not held");
    Ok(())
}

#[test]
fn a_socket_to_the_outside_is_connected_again() -> Result<()> {
    let testbed = Testbed::here()?;
    let dir = Scratch::new()?;
    fs::create_dir(dir.join("shared"))?;
    let listener = UnixDatagram::bind(dir.join("shared/socket"))?;
    listener.set_read_timeout(Some(LIMIT))?;
    // By the name that the peer has: in the container it is the same.
    let shared = dir.text("shared");
    let program = format!(
        "import socket,time,uuid\nt=str(uuid.uuid4()).encode()\n\
         s=socket.socket(socket.AF_UNIX,socket.SOCK_DGRAM); s.connect('{shared}/socket')\n\
         while True:\n  try: s.send(t, socket.MSG_DONTWAIT)\n  except BlockingIOError: pass\n  \
         time.sleep(0.05)"
    );
    let volume = format!("{shared}:{shared}");
    // CRIU knows only the sockets of the network namespace.
    let sandbox = python(&testbed, &program, &["--network", "host", "-v", &volume])?;
    let heard = || -> Result<String> {
        let mut buffer = [0; 64];
        let size = listener.recv(&mut buffer)?;
        Ok(String::from_utf8_lossy(&buffer[..size]).into_owned())
    };
    let known = heard()?;
    let without = CheckpointOptions::default();
    refused(
        &sandbox,
        &docker_place(&sandbox, "no"),
        without,
        "UNKNOWN",
        "ext-unix-sk",
    )?;
    let with = CheckpointOptions {
        external_unix_sockets: true,
        ..Default::default()
    };
    checkpointed(&sandbox, &docker_place(&sandbox, "yes"), with)?;
    sandbox.stop()?;
    // What was sent before.
    listener.set_nonblocking(true)?;
    while heard().is_ok() {}
    listener.set_nonblocking(false)?;
    docker_restore(&sandbox, "yes")?;
    assert_eq!(heard()?, known);
    Ok(())
}

#[test]
fn connections_live_on() -> Result<()> {
    let testbed = Testbed::here()?;
    // Both ends, over loopback, with a number that only goes up.
    let program = "import socket,time,threading\n\
                   l=socket.create_server(('127.0.0.1',7777))\n\
                   c=socket.create_connection(('127.0.0.1',7777)); s,_=l.accept()\n\
                   n=0\nwhile True:\n  n+=1; c.send(b'%d\\n'%n); r=s.recv(64)\n  \
                   open('/dev/shm/n','w').write(r.decode()); time.sleep(0.05)";
    let sandbox = python(&testbed, program, &[])?;
    let number = || {
        poll("a number arrives", LIMIT, || {
            let said = sandbox.sh("cat /dev/shm/n")?;
            Ok(said.stdout.trim().parse::<u32>().ok())
        })
    };
    number()?;
    let with = CheckpointOptions {
        open_tcp: true,
        ..Default::default()
    };
    let without = CheckpointOptions::default();
    if Command::new("criu")
        .arg("--version")
        .output()?
        .stdout
        .starts_with(b"Version: 4.1")
        && testbed.machine().starts_with("Linux 6.18")
    {
        let why = "an internet socket";
        refused(
            &sandbox,
            &docker_place(&sandbox, "no"),
            without,
            "UNKNOWN",
            why,
        )?;
        refused(
            &sandbox,
            &docker_place(&sandbox, "yes"),
            with,
            "UNKNOWN",
            why,
        )?;
        return skip("CRIU 4.1 cannot dump internet sockets on Linux 6.16 and newer");
    }
    refused(
        &sandbox,
        &docker_place(&sandbox, "no"),
        without,
        "UNKNOWN",
        "tcp-established",
    )?;
    checkpointed(&sandbox, &docker_place(&sandbox, "yes"), with)?;
    let before = number()?;
    docker_restore(&sandbox, "yes")?;
    sandbox.sh_ok("rm -f /dev/shm/n")?;
    ensure!(number()? + 100 > before, "it began anew");
    Ok(())
}

#[test]
fn a_terminal_is_one_again() -> Result<()> {
    let testbed = Testbed::here()?;
    let program = "import os,time,uuid\nt=str(uuid.uuid4())\nwhile True:\n  \
                   open('/dev/shm/token','w').write(t if os.isatty(0) and os.isatty(1) else 'none'); \
                   print('said',t); time.sleep(0.05)";
    let sandbox = python(&testbed, program, &["-t"])?;
    let known = token(&sandbox)?;
    let with = CheckpointOptions {
        terminal: true,
        ..Default::default()
    };
    checkpointed(&sandbox, &docker_place(&sandbox, "yes"), with)?;
    docker_restore(&sandbox, "yes")?;
    remembers(&sandbox, &known)?;
    let lines = || -> Result<usize> { Ok(sandbox.logs()?.stdout.matches(&known).count()) };
    let before = lines()?;
    poll("its output goes on", LIMIT, || {
        Ok((lines()? > before).then_some(()))
    })
}

#[test]
fn an_empty_network_is_the_only_empty_namespace() -> Result<()> {
    let testbed = Testbed::here()?;
    let sandbox = testbed.docker().run(DEBIAN, keeper())?;
    let known = token(&sandbox)?;
    let empty = |name: &str| CheckpointOptions {
        empty_namespaces: vec![name.into()],
        ..Default::default()
    };
    let why = "only the network namespace";
    for name in ["pid", "mount", ""] {
        refused(
            &sandbox,
            &docker_place(&sandbox, "no"),
            empty(name),
            "INVALID_ARGUMENT",
            why,
        )?;
    }
    checkpointed(&sandbox, &docker_place(&sandbox, "yes"), empty("network"))?;
    docker_restore(&sandbox, "yes")?;
    remembers(&sandbox, &known)?;
    let devices = sandbox.sh_ok("cat /proc/net/dev")?;
    let count = devices.lines().filter(|line| line.contains(':')).count();
    ensure!(count == 1, "not only loopback: {devices}");
    Ok(())
}

#[test]
fn cgroups_are_dumped_as_the_mode_says_and_the_runtime_knows() -> Result<()> {
    let testbed = Testbed::here()?;
    let sandbox = testbed.docker().run(DEBIAN, keeper())?;
    let known = token(&sandbox)?;
    let mode = |mode: &str| CheckpointOptions {
        cgroups_mode: mode.into(),
        ..Default::default()
    };
    let why = "soft, full, strict and ignore";
    refused(
        &sandbox,
        &docker_place(&sandbox, "no"),
        mode("some"),
        "INVALID_ARGUMENT",
        why,
    )?;
    let mut sizes = Vec::new();
    for word in ["soft", "full", "strict"] {
        let image = docker_place(&sandbox, word);
        checkpointed(&sandbox, &image, mode(word))?;
        sizes.push(fs::metadata(image.join("cgroup.img"))?.len());
        docker_restore(&sandbox, word)?;
        remembers(&sandbox, &known)?;
    }
    let help = Command::new("runc")
        .args(["checkpoint", "--help"])
        .output()?;
    if String::from_utf8_lossy(&help.stdout).contains("ignore") {
        let image = docker_place(&sandbox, "ignore");
        checkpointed(&sandbox, &image, mode("ignore"))?;
        // Neither their names nor their properties.
        let size = fs::metadata(image.join("cgroup.img")).map_or(0, |meta| meta.len());
        ensure!(sizes.iter().all(|other| size < *other), "{size} {sizes:?}");
        docker_restore(&sandbox, "ignore")?;
        remembers(&sandbox, &known)
    } else {
        let start = Instant::now();
        let why = "does not know cgroups mode ignore";
        refused(
            &sandbox,
            &docker_place(&sandbox, "ignore"),
            mode("ignore"),
            "UNKNOWN",
            why,
        )?;
        ensure!(
            start.elapsed() < Duration::from_secs(10),
            "it took long to refuse"
        );
        Ok(())
    }
}

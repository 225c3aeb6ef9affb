// SPDX-License-Identifier: Apache-2.0

//! What copies would share, and do not: docs/clones.md.

use std::time::Duration;

use anyhow::{Result, ensure};
use crab_integration::{DEBIAN, RunOptions, Sandbox, Testbed, poll, skip, unique};

const LIMIT: Duration = Duration::from_secs(20);

/// Talks to itself over loopback and says how that goes; says also what it is called.
const TALKER: &str = "import os,socket,time\n\
    l=socket.create_server(('0.0.0.0',7777))\n\
    c=socket.create_connection(('127.0.0.1',7777)); s,_=l.accept()\n\
    n=0\n\
    def say(what): open('/dev/shm/new','w').write(what); os.rename('/dev/shm/new','/dev/shm/said')\n\
    while True:\n  \
      n+=1\n  \
      try: c.send(b'%d'%n); r=s.recv(64).decode() or 'end'\n  \
      except OSError as e: r='error'\n  \
      say(r+' '+os.uname().nodename)\n  \
      time.sleep(0.05)";

/// Without the connection, for a CRIU that cannot dump one on this kernel.
const NAMER: &str = "import os,time\n\
    while True:\n  \
      open('/dev/shm/new','w').write('1 '+os.uname().nodename)\n  \
      os.rename('/dev/shm/new','/dev/shm/said')\n  \
      time.sleep(0.05)";

/// What the program says now: of its connection, and its host's name.
fn said(sandbox: &Sandbox) -> Result<(String, String)> {
    sandbox.sh_ok("rm -f /dev/shm/said")?;
    poll("it says something", LIMIT, || {
        let said = sandbox.sh("cat /dev/shm/said")?.stdout;
        let words = said.split_once(' ');
        Ok(words.map(|(how, name)| (how.to_owned(), name.trim().to_owned())))
    })
}

#[test]
fn connections_are_closed_in_a_copy_and_go_on_in_the_original() -> Result<()> {
    let testbed = Testbed::here()?;
    let crab = testbed.crab();
    for client in testbed.clients() {
        let sandbox = client.run(DEBIAN, RunOptions::new().args(["python3", "-c", TALKER]))?;
        let number = |sandbox: &Sandbox| Ok::<_, anyhow::Error>(said(sandbox)?.0.parse::<u64>());
        number(&sandbox)??;
        let forks = crab.fork(client, &sandbox.sandbox_id(), &["--count", "2"])?;
        if let Some(why) = forks.said["degraded"].as_str() {
            ensure!(why.contains("internet socket"), "{why}");
            return skip("CRIU 4.1 cannot dump internet sockets on Linux 6.16 and newer");
        }
        for copy in &forks.made {
            ensure!(number(copy)?.is_err(), "its connection lives on");
            // It listens, as before.
            let connect = "python3 -c \"import socket; \
                           socket.create_connection(('127.0.0.1',7777))\"";
            copy.sh_ok(connect)?;
            // And once more when it goes back to its beginning.
            crab.rollback_cold(copy, 0)?;
            ensure!(number(copy)?.is_err(), "its connection is back");
        }
        let before = number(&sandbox)??;
        poll("the original goes on", LIMIT, || {
            Ok((number(&sandbox)?? > before).then_some(()))
        })?;
    }
    Ok(())
}

#[test]
fn a_copy_has_a_host_name_of_its_own_unless_one_was_chosen() -> Result<()> {
    let testbed = Testbed::here()?;
    let crab = testbed.crab();
    for client in testbed.clients() {
        let name = unique("named");
        let options = match client.name() {
            "docker" => RunOptions::new(),
            // Of its own accord it gives no name.
            _ => RunOptions::new().flags(["--hostname", &name]),
        };
        let args = ["python3", "-c", NAMER];
        let sandbox = client.run(DEBIAN, options.id(&name).args(args))?;
        let own = |sandbox: &Sandbox| sandbox.id()[..sandbox.id().len().min(12)].to_owned();
        assert!(said(&sandbox)?.1.starts_with(&own(&sandbox)));
        let forks = crab.fork(client, &sandbox.sandbox_id(), &[])?;
        let (_, name) = said(&forks.made[0])?;
        assert!(name.starts_with(&own(&forks.made[0])), "{name}");
        assert_eq!(forks.said["processes"], true);

        let options = RunOptions::new().flags(["--hostname", "agent"]).args(args);
        let sandbox = client.run(DEBIAN, options)?;
        said(&sandbox)?;
        let forks = crab.fork(client, &sandbox.sandbox_id(), &[])?;
        assert_eq!(said(&forks.made[0])?.1, "agent");
    }
    Ok(())
}

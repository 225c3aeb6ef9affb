// SPDX-License-Identifier: Apache-2.0

//! What cannot be copied, and what is left of it.

use std::{fs, path::Path};

use anyhow::Result;
use crab_integration::{BUSYBOX, Census, RunOptions, Testbed};
use crab_store::Class;

#[test]
fn what_fails_is_said_leaves_nothing_and_costs_the_others_nothing() -> Result<()> {
    let testbed = Testbed::here()?;
    let _alone = testbed.alone();
    let crab = testbed.crab();
    for client in testbed.clients() {
        let sandbox = client.run(BUSYBOX, RunOptions::new())?;
        crab.turn_of(&sandbox, Class::Files, "echo 1 >/root/n")?;
        let id = sandbox.sandbox_id();

        let refused = crab.refusal(&["fork", &format!("{id}@7")])?;
        assert_eq!(refused.code, 3, "{refused:?}");
        let refused = crab.refusal(&["fork", &id, "--name", sandbox.name()])?;
        assert_eq!(refused.code, 1, "{refused:?}");
        let refused = crab.refusal(&["fork", &id, "--name", "-x"])?;
        assert_eq!(refused.code, 2, "{refused:?}");

        // One name of three is taken.
        let taken = client.run(
            BUSYBOX,
            RunOptions::new().id(format!("{}-2", sandbox.name())),
        )?;
        let stores = || -> Result<usize> {
            let dir = Path::new("/var/lib/crab/sandboxes").join(client.namespace());
            Ok(fs::read_dir(dir)?.count())
        };
        let before = stores()?;
        let pattern = format!("{}-{{n}}", sandbox.name());
        let args = ["--count", "3", "--name", &pattern];
        let (status, forks) = crab.fork_some(client, &id, &args)?;
        assert_eq!((status, forks.made.len()), (1, 2), "{}", forks.said);
        assert!(
            forks.said["forks"][1]["error"].is_string(),
            "{}",
            forks.said
        );
        assert_eq!(stores()?, before + 2);
        assert_eq!(forks.made[1].sh_ok("cat /root/n")?, "1");
        assert_eq!(taken.sh_ok("ls /root")?, "");
    }
    Ok(())
}

#[test]
fn a_copy_whose_start_fails_leaves_nothing() -> Result<()> {
    let testbed = Testbed::here()?;
    let _alone = testbed.alone();
    let crab = testbed.crab();
    for client in testbed.clients() {
        let dir = crab_integration::unique("/tmp/forks-");
        fs::create_dir(&dir)?;
        let bind = match client.name() {
            "docker" => vec!["-v".to_owned(), format!("{dir}:/mnt")],
            _ => {
                let mount = format!("type=bind,src={dir},dst=/mnt,options=rbind:rw");
                vec!["--mount".to_owned(), mount]
            }
        };
        let sandbox = client.run(BUSYBOX, RunOptions::new().flags(bind))?;
        crab.turn_of(&sandbox, Class::Files, "echo 1 >/root/n")?;
        let before = Census::take()?;
        // What is to be mounted in the copy is gone.
        fs::remove_dir(&dir)?;
        let id = sandbox.sandbox_id();
        let stores = Path::new("/var/lib/crab/sandboxes").join(client.namespace());
        let histories = fs::read_dir(&stores)?.count();
        let snapshots = || {
            crab_integration::Tool::new("ctr")
                .args(["snapshots", "ls"])
                .run()
        };
        let had = snapshots()?.ok()?.stdout.lines().count();
        if client.name() == "docker" {
            // dockerd makes what is missing itself: it must not be able to.
            fs::write(&dir, "")?;
        }
        let refused = crab.refusal(&["fork", &id, "--name", &crab_integration::unique("copy")]);
        if client.name() == "docker" {
            fs::remove_file(&dir)?;
        }
        let refused = refused?;
        assert_eq!(refused.code, 1, "{refused:?}");
        assert!(refused.line.contains("nothing is left"), "{refused:?}");
        before.wait_for_nothing_left()?;
        assert_eq!(fs::read_dir(&stores)?.count(), histories);
        assert_eq!(snapshots()?.ok()?.stdout.lines().count(), had);
    }
    Ok(())
}

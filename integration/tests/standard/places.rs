// SPDX-License-Identifier: Apache-2.0

//! Where an image is written, where CRIU works, and upon what an image builds.

use std::{collections::BTreeMap, fs, path::Path};

use anyhow::Result;
use containerd_shim_protos::{protobuf::Message, shim::oci::CheckpointOptions};
use crab_integration::{DEBIAN, Testbed};

use crate::{
    Scratch, checkpoint, checkpointed, docker_place, docker_restore, is_untouched, keeper, refused,
    remembers, token,
};

/// The files of a directory.
fn files(dir: &Path) -> Result<BTreeMap<String, Vec<u8>>> {
    let mut files = BTreeMap::new();
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        files.insert(name, fs::read(entry.path())?);
    }
    Ok(files)
}

#[test]
fn an_image_is_whole_in_both_places_that_are_asked_for() -> Result<()> {
    let testbed = Testbed::here()?;
    let sandbox = testbed.docker().run(DEBIAN, keeper())?;
    let known = token(&sandbox)?;
    let dir = Scratch::new()?;
    // containerd 1.7 publishes what is in the first, whatever the client has said.
    let (of_client, of_server) = (
        docker_place(&sandbox, "of-client"),
        docker_place(&sandbox, "of-server"),
    );
    let options = CheckpointOptions {
        image_path: of_client.display().to_string(),
        work_path: dir.text("work"),
        ..Default::default()
    };
    checkpointed(&sandbox, &of_server, options)?;
    let of_client = files(&of_client)?;
    assert_eq!(of_client, files(&of_server)?);
    assert!(of_client.contains_key("pages-1.img"));
    assert!(dir.join("work/dump.log").exists());
    assert!(!of_client.contains_key("dump.log"));
    docker_restore(&sandbox, "of-server")?;
    remembers(&sandbox, &known)?;
    docker_restore(&sandbox, "of-client")?;
    remembers(&sandbox, &known)
}

#[test]
fn a_restore_leaves_the_clients_image_as_it_is() -> Result<()> {
    let testbed = Testbed::here()?;
    let sandbox = testbed.docker().run(DEBIAN, keeper())?;
    let known = token(&sandbox)?;
    let images = docker_place(&sandbox, "images");
    checkpointed(&sandbox, &images, CheckpointOptions::default())?;
    let before = files(&images)?;
    docker_restore(&sandbox, "images")?;
    remembers(&sandbox, &known)?;
    assert_eq!(before, files(&images)?);
    Ok(())
}

#[test]
fn a_place_is_an_absolute_path() -> Result<()> {
    let testbed = Testbed::here()?;
    let sandbox = testbed.ctr().run(DEBIAN, keeper())?;
    let none = Path::new("");
    for options in [
        CheckpointOptions {
            image_path: "images".into(),
            ..Default::default()
        },
        CheckpointOptions {
            work_path: "../work".into(),
            ..Default::default()
        },
    ] {
        refused(&sandbox, none, options, "INVALID_ARGUMENT", "not absolute")?;
    }
    Ok(())
}

/// Options with a parent path, which these bindings do not have yet.
fn upon(parent: &str) -> Result<CheckpointOptions> {
    let mut bytes = vec![10 << 3 | 2, u8::try_from(parent.len())?];
    bytes.extend(parent.as_bytes());
    Ok(CheckpointOptions::parse_from_bytes(&bytes)?)
}

#[test]
fn a_parent_that_is_no_image_is_refused_before_anything_is_frozen() -> Result<()> {
    let testbed = Testbed::here()?;
    let sandbox = testbed.ctr().run(DEBIAN, keeper())?;
    let dir = Scratch::new()?;
    let images = dir.join("images");
    let no = |parent: &str, why: &str| {
        refused(&sandbox, &images, upon(parent)?, "INVALID_ARGUMENT", why)
    };
    no("../before", "there is no image")?;
    fs::create_dir(dir.join("before"))?;
    no("../before", "there is no image")?;
    no(&dir.text("before"), "relative")?;
    fs::write(dir.join("file"), "x")?;
    no("../file", "there is no image")?;
    assert!(!images.exists());
    Ok(())
}

#[test]
fn a_parent_is_built_upon_or_criu_says_why_not() -> Result<()> {
    let testbed = Testbed::here()?;
    let sandbox = testbed.docker().run(DEBIAN, keeper())?;
    let (pid, known) = (sandbox.pid()?, token(&sandbox)?);
    let before = docker_place(&sandbox, "before");
    checkpointed(&sandbox, &before, CheckpointOptions::default())?;
    let now = docker_place(&sandbox, "now");
    match checkpoint(&sandbox, &now, upon("../before")?)? {
        Ok(_) => {
            is_untouched(&sandbox, pid)?;
            assert!(now.join("parent").symlink_metadata().is_ok());
            docker_restore(&sandbox, "now")?;
        }
        // A kernel that does not track what is written.
        Err(denied) => {
            is_untouched(&sandbox, pid)?;
            assert!(denied.message.contains("CRIU: "), "{denied:?}");
            assert!(!now.join("inventory.img").exists());
        }
    }
    remembers(&sandbox, &known)
}

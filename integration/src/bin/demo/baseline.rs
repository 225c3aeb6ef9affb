// SPDX-License-Identifier: Apache-2.0

//! The same session with what there is without Crab: containerd's own shim, and a
//! full checkpoint after each turn.

use std::{fs, path::Path};

use anyhow::{Context, Result, ensure};
use crab_integration::{Client, DEBIAN, RunOptions, Runtime, Tool};

use crate::{
    report::{Story, size},
    session::SESSION,
    show::bytes_in,
};

const DIR: &str = "/var/tmp/crab-demo-baseline";

/// Runs the session and counts the bytes of each turn's checkpoint: CRIU's images
/// by `ctr task checkpoint`, and a tar of the writable layer.
pub(crate) fn full_every_turn(story: Story, client: Client) -> Result<u64> {
    story.title("the same session under io.containerd.runc.v2, a full checkpoint after each turn");
    let _ = fs::remove_dir_all(DIR);
    let dir = Path::new(DIR);
    fs::create_dir(dir).with_context(|| format!("make {DIR}"))?;
    let counted = count(dir, client);
    fs::remove_dir_all(dir).with_context(|| format!("remove {DIR}"))?;
    let (images, layers) = counted?;
    story.line(format!(
        "{} checkpoints: {} of CRIU images (ctr task checkpoint --image-path) and {} of writable \
         layers (tar), as they are on disk, not compressed",
        SESSION.len(),
        size(images),
        size(layers)
    ));
    Ok(images + layers)
}

fn count(dir: &Path, client: Client) -> Result<(u64, u64)> {
    let options = RunOptions::new().runtime(Runtime::Stock);
    let sandbox = client.run(DEBIAN, options.id("demo-baseline"))?;
    let upper = sandbox.upper_dir()?;
    let (mut images, mut layers) = (0, 0);
    for step in &SESSION {
        let said = sandbox.exec(&["bash", "-c", step.script])?;
        ensure!(
            said.status == step.exit,
            "{}: it ended with {}: {}",
            step.what,
            said.status,
            said.stderr.trim()
        );
        let image = dir.join("image");
        let path = image.display().to_string();
        client
            .tool(["task", "checkpoint", "--image-path", &path, sandbox.id()])
            .run()?
            .ok()?;
        images += bytes_in(&image)?;
        fs::remove_dir_all(&image).with_context(|| format!("remove {path}"))?;

        let tar = dir.join("layer.tar");
        let path = tar.display().to_string();
        let layer = upper.display().to_string();
        Tool::new("tar")
            .args(["--xattrs", "-C", &layer, "-cf", &path, "."])
            .run()?
            .ok()?;
        layers += tar
            .metadata()
            .with_context(|| format!("read {path}"))?
            .len();
    }
    Ok((images, layers))
}

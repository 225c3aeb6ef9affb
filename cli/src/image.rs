// SPDX-License-Identifier: Apache-2.0

//! The images that sandboxes run on, as their clients know them. Who is not asked or does not answer
//! is no reason to fail: then it is not known.

use crab_store::{ImageName, SandboxId};
use serde::{Deserialize, Serialize};

use crate::{docker, starter::run};

/// Whether an image is on this host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case", tag = "state")]
pub(crate) enum Here {
    /// It is.
    Present,
    /// Another one has its name.
    Other {
        /// Its digest.
        digest: String,
    },
    /// None has its name.
    Missing,
    /// Nobody could be asked.
    Unknown {
        /// Why not.
        why: String,
    },
}

/// What containerd tells of a container.
#[derive(Deserialize)]
struct Container {
    #[serde(rename = "Image")]
    image: String,
}

/// The image that a sandbox's container was made from, if its client still has it.
pub(crate) async fn of(id: &SandboxId) -> Option<ImageName> {
    if id.namespace() == docker::NAMESPACE {
        let format = "{{.Config.Image}} {{.Image}}";
        let told = run(
            "docker",
            &["container", "inspect", "--format", format, id.id()],
        )
        .await;
        let told = told.ok()?;
        let (name, digest) = told.trim().split_once(' ')?;
        return Some(ImageName {
            name: name.to_owned(),
            digest: Some(digest.to_owned()),
        });
    }
    let info = ["-n", id.namespace(), "containers", "info", id.id()];
    let told = run("ctr", &info).await.ok()?;
    let Container { image } = serde_json::from_str(&told).ok()?;
    if image.is_empty() {
        return None;
    }
    Some(ImageName {
        digest: digest(id, &image).await.ok().flatten(),
        name: image,
    })
}

/// Whether the client of a namespace has an image.
pub(crate) async fn here(id: &SandboxId, image: &ImageName) -> Here {
    match digest(id, &image.name).await {
        Err(why) => Here::Unknown { why },
        Ok(None) => Here::Missing,
        Ok(Some(found)) => match &image.digest {
            Some(wanted) if *wanted != found => Here::Other { digest: found },
            _ => Here::Present,
        },
    }
}

/// The digest of the image that has this name; nothing if none has.
async fn digest(id: &SandboxId, name: &str) -> Result<Option<String>, String> {
    if name.starts_with('-') {
        return Err(format!("{name:?} is no name of an image"));
    }
    if id.namespace() == docker::NAMESPACE {
        let found = run("docker", &["images", "--no-trunc", "--quiet", name]).await?;
        return Ok(found.lines().next().map(|line| line.trim().to_owned()));
    }
    let by_name = format!("name=={name}");
    let list = run("ctr", &["-n", id.namespace(), "images", "ls", &by_name]).await?;
    Ok(listed(&list, name))
}

/// The digest in what `ctr images ls` prints: name, type, digest, ...
fn listed(list: &str, name: &str) -> Option<String> {
    let mut rows = list.lines().map(|line| line.split_whitespace());
    rows.find_map(|mut row| {
        let (found, digest) = (row.next()?, row.nth(1)?);
        (found == name && digest.contains(':')).then(|| digest.to_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_digest_is_the_third_column_of_the_row_with_the_name() {
        let list = "REF   TYPE  DIGEST SIZE PLATFORMS LABELS\n\
                    a/b:1 application/vnd.oci.image.manifest.v1+json sha256:12 3.4 MiB linux/amd64 -\n";
        assert_eq!(listed(list, "a/b:1"), Some("sha256:12".into()));
        assert_eq!(listed(list, "a/b"), None);
        assert_eq!(listed(list, "REF"), None);
    }
}

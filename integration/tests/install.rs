// SPDX-License-Identifier: Apache-2.0

//! `scripts/install` changes what it says and nothing else, and takes it back.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, ensure};
use crab_integration::{Output, Testbed, Tool};

const CONTAINERD_2: &str = "version = 2\n\n[plugins]\n  [plugins.\"io.containerd.grpc.v1.cri\"]\n    \
                            sandbox_image = \"pause:1\"\n\n\n";
const CONTAINERD_3: &str = "# mine\nversion = 3\n\
                            [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]\n  \
                            runtime_type = 'io.containerd.runc.v2'\n";
const CONTAINERD_1: &str = "[plugins.cri]\n  stream_server_port = \"0\"\n";
const DOCKER: &str =
    "{\"log-level\":\"warn\",\n \"runtimes\":{\"x\":{\"path\":\"/x\"}}, \"dns\":[]}";

/// A tree that is installed into.
struct Tree(PathBuf);

impl Tree {
    fn new(name: &str) -> Result<Self> {
        let dir = std::env::temp_dir().join(format!("crab-{name}-{}", std::process::id()));
        fs::create_dir(&dir).with_context(|| format!("make {}", dir.display()))?;
        Ok(Self(dir))
    }

    fn put(&self, file: &str, text: &str) -> Result<()> {
        let path = self.0.join(file);
        fs::create_dir_all(path.parent().context("a file in a directory")?)?;
        fs::write(&path, text).with_context(|| format!("write {}", path.display()))
    }

    fn text(&self, file: &str) -> Result<String> {
        let path = self.0.join(file);
        fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))
    }

    fn install(&self, args: &[&str]) -> Result<Output> {
        let source = std::env::var("TESTBED_SRC").unwrap_or_else(|_| "/src".into());
        let root = self.0.display().to_string();
        Tool::new(format!("{source}/scripts/install"))
            .args(["--root", &root, "--bin", "/usr/local/bin"])
            .args(args.iter().copied())
            .run()
    }

    /// Every file with what is in it.
    fn files(&self) -> Result<BTreeMap<PathBuf, Vec<u8>>> {
        fn walk(dir: &Path, found: &mut BTreeMap<PathBuf, Vec<u8>>) -> Result<()> {
            for entry in fs::read_dir(dir)? {
                let path = entry?.path();
                match path.is_dir() {
                    true => walk(&path, found)?,
                    false => drop(found.insert(path.clone(), fs::read(&path)?)),
                }
            }
            Ok(())
        }
        let mut found = BTreeMap::new();
        walk(&self.0, &mut found)?;
        Ok(found)
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.0) {
            eprintln!("could not remove {}: {error}", self.0.display());
        }
    }
}

#[test]
fn what_others_wrote_is_kept_and_comes_back_to_the_byte() -> Result<()> {
    Testbed::here()?;
    for (name, containerd) in [("two", CONTAINERD_2), ("three", CONTAINERD_3)] {
        let tree = Tree::new(name)?;
        tree.put("etc/containerd/config.toml", containerd)?;
        tree.put("etc/docker/daemon.json", DOCKER)?;
        let before = tree.files()?;

        tree.install(&["--containerd", "--docker"])?.ok()?;
        let config = tree.text("etc/containerd/config.toml")?;
        ensure!(config.starts_with(containerd), "{config}");
        let handler = ".containerd.runtimes.crab]\n  runtime_type = \"io.containerd.crab.v1\"\n";
        ensure!(config.contains(handler), "{config}");
        // The one that the file had, and may have only once.
        ensure!(config.matches(".runtimes.runc]").count() == 1, "{config}");
        let docker: serde_json::Value =
            serde_json::from_str(&tree.text("etc/docker/daemon.json")?)?;
        assert_eq!(
            docker["runtimes"]["crab"]["runtimeType"],
            "io.containerd.crab.v1"
        );
        assert_eq!(docker["runtimes"]["x"]["path"], "/x");
        assert_eq!(docker["log-level"], "warn");
        for program in ["containerd-shim-crab-v1", "crabd", "crab"] {
            ensure!(tree.0.join("usr/local/bin").join(program).is_file());
        }
        ensure!(
            tree.text("etc/systemd/system/crabd.service")?
                .contains("/usr/local/bin/crabd")
        );

        // Again: nothing more.
        let once = tree.files()?;
        tree.install(&["--containerd", "--docker"])?.ok()?;
        assert_eq!(tree.files()?, once);

        tree.install(&["--uninstall"])?.ok()?;
        assert_eq!(tree.files()?, before);
    }
    Ok(())
}

#[test]
fn a_second_installation_keeps_a_copy_of_what_was_written_since_the_first() -> Result<()> {
    Testbed::here()?;
    const FILES: [&str; 2] = ["etc/containerd/config.toml", "etc/docker/daemon.json"];
    let tree = Tree::new("again")?;
    tree.put(FILES[0], CONTAINERD_2)?;
    tree.put(FILES[1], DOCKER)?;
    tree.install(&["--containerd", "--docker"])?.ok()?;
    let added = tree.text(FILES[0])? + "\n[debug]\n  level = \"warn\"\n";
    tree.put(FILES[0], &added)?;
    tree.put(FILES[1], &tree.text(FILES[1])?.replace("warn", "info"))?;
    tree.install(&["--uninstall"])?.ok()?;
    let before = FILES.map(|file| tree.text(file));
    for (file, before) in FILES.into_iter().zip(before) {
        let before = before?;
        ensure!(!before.contains("crab"), "{before}");
        tree.install(&["--containerd", "--docker"])?.ok()?;
        assert_eq!(tree.text(&format!("{file}.before-crab"))?, before);
    }
    tree.install(&["--uninstall"])?.ok()?;
    ensure!(tree.text(FILES[0])?.contains("level = \"warn\""));
    ensure!(tree.text(FILES[1])?.contains("info"));
    Ok(())
}

#[test]
fn cgroups_are_systemds_for_crab_where_they_are_for_runc() -> Result<()> {
    Testbed::here()?;
    let tree = Tree::new("systemd-cgroup")?;
    let options = "\n[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]\n  \
                   SystemdCgroup = true\n";
    let containerd = format!("{CONTAINERD_3}{options}");
    tree.put("etc/containerd/config.toml", &containerd)?;
    tree.install(&["--containerd"])?.ok()?;
    let config = tree.text("etc/containerd/config.toml")?;
    let added = config.strip_prefix(&containerd).context("it was kept")?;
    ensure!(
        added.contains(".containerd.runtimes.crab.options]\n  SystemdCgroup = true\n"),
        "{config}"
    );
    ensure!(added.matches("\n[").count() == 2, "{config}");
    tree.install(&["--uninstall"])?.ok()?;
    assert_eq!(tree.text("etc/containerd/config.toml")?, containerd);
    Ok(())
}

#[test]
fn what_systemctl_edit_wrote_outlasts_the_unit() -> Result<()> {
    Testbed::here()?;
    let tree = Tree::new("drop-in")?;
    let theirs = "etc/systemd/system/crabd.service.d/override.conf";
    tree.install(&["--prefix", "/opt/crab"])?.ok()?;
    tree.put(theirs, "[Service]\nNice=1\n")?;
    // The other prefix is asked for, and not guessed.
    let said = tree.install(&["--uninstall"])?.ok()?;
    ensure!(
        said.stdout
            .contains("to do: there are no programs in /usr/local/bin"),
        "{}",
        said.stdout
    );
    tree.install(&["--uninstall", "--prefix", "/opt/crab"])?
        .ok()?;
    let left: Vec<PathBuf> = tree.files()?.into_keys().collect();
    assert_eq!(left, [tree.0.join(theirs)]);
    Ok(())
}

#[test]
fn a_host_without_any_configuration_gets_the_samples_and_loses_them_again() -> Result<()> {
    Testbed::here()?;
    let tree = Tree::new("bare")?;
    tree.put("var/lib/crab/FORMAT", "crab-store 1\n")?;
    let before = tree.files()?;
    tree.install(&["--containerd", "--docker", "--prefix", "/opt/crab"])?
        .ok()?;
    ensure!(tree.text("etc/crab/config.toml")?.contains("store = "));
    ensure!(
        tree.text("etc/docker/daemon.json")?
            .contains("io.containerd.crab.v1")
    );
    ensure!(
        tree.text("etc/containerd/config.toml")?
            .contains("version = ")
    );
    // The unit is the sample, and only its path is another.
    let start = tree.text("etc/systemd/system/crabd.service.d/prefix.conf")?;
    ensure!(
        start.contains("\nExecStart=/opt/crab/bin/crabd "),
        "{start}"
    );
    tree.install(&["--uninstall", "--prefix", "/opt/crab"])?
        .ok()?;
    assert_eq!(tree.files()?, before);
    Ok(())
}

#[test]
fn a_changed_configuration_stays_and_an_unknown_one_is_not_touched() -> Result<()> {
    Testbed::here()?;
    let tree = Tree::new("changed")?;
    tree.put("etc/crab/config.toml", "log_level = \"debug\"\n")?;
    tree.put("etc/containerd/config.toml", CONTAINERD_1)?;
    tree.put("etc/docker/daemon.json", "no JSON")?;
    let said = tree.install(&["--containerd"])?.ok()?;
    ensure!(
        said.stdout.contains("to do: /etc/containerd/config.toml"),
        "{}",
        said.stdout
    );
    assert_eq!(tree.text("etc/containerd/config.toml")?, CONTAINERD_1);
    let said = tree.install(&["--docker"])?;
    assert_eq!(said.status, 1, "{}", said.stdout);
    ensure!(
        said.stderr.contains("/etc/docker/daemon.json"),
        "{}",
        said.stderr
    );
    assert_eq!(tree.text("etc/docker/daemon.json")?, "no JSON");
    tree.install(&["--uninstall"])?.ok()?;
    assert_eq!(
        tree.text("etc/crab/config.toml")?,
        "log_level = \"debug\"\n"
    );
    Ok(())
}

#[test]
fn nonsense_is_refused_before_anything_is_written() -> Result<()> {
    Testbed::here()?;
    let tree = Tree::new("nonsense")?;
    for args in [
        &["--prefix", "relative"][..],
        &["--what"],
        &["--prefix", "/a b"],
        &["--prefix"],
    ] {
        let said = tree.install(args)?;
        assert_eq!(said.status, 2, "{args:?}: {}", said.stdout);
    }
    let said = tree.install(&["--bin", "/nowhere"])?;
    assert_eq!(said.status, 1);
    ensure!(
        said.stderr.contains("there is no /nowhere/"),
        "{}",
        said.stderr
    );
    ensure!(tree.files()?.is_empty());
    Ok(())
}

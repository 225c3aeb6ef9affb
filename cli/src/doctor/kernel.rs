// SPDX-License-Identifier: Apache-2.0

//! The kernel: its version, and what it was built with.

use std::{
    fs,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
};

use super::{check::Check, version::Version};

/// The oldest kernel that is thought of: pidfds, the v2 freezer, BPF links.
const OLDEST: Version = Version(5, 10);

pub(crate) fn release() -> String {
    rustix::system::uname()
        .release()
        .to_string_lossy()
        .into_owned()
}

pub(crate) fn checks() -> Vec<Check> {
    let modules = PathBuf::from("/lib/modules").join(release());
    vec![
        version(&release(), std::env::consts::ARCH),
        present(
            "btf",
            Path::new("/sys/kernel/btf/vmlinux").exists(),
            "the kernel describes its types",
            "the kernel has no BTF: turns are unobserved, each is looked at in full",
            "boot a kernel that was built with CONFIG_DEBUG_INFO_BTF, as those of current distributions are",
        ),
        overlay(
            &fs::read_to_string("/proc/filesystems").unwrap_or_default(),
            module_is_there(&modules, "overlay"),
        ),
        cgroup(),
        checkpoint_restore(Path::new("/proc/sys/kernel/ns_last_pid").exists()),
        Check::ok(
            "soft-dirty",
            match tracks_dirty_pages() {
                true => {
                    "the kernel tracks written memory, but not all of it: process images are whole, never incremental"
                }
                false => {
                    "the kernel does not track written memory: process images are whole, as everywhere"
                }
            },
        ),
        present(
            "time-namespace",
            Path::new("/proc/self/ns/time").exists(),
            "the kernel has time namespaces",
            "the kernel has no time namespaces: clocks of restored processes jump after a boot",
            "boot a kernel that was built with CONFIG_TIME_NS",
        ),
        Check::ok(
            "userfaultfd",
            match Path::new("/proc/sys/vm/unprivileged_userfaultfd").exists() {
                true => "the kernel has userfaultfd",
                false => "the kernel has no userfaultfd: memory is restored at once, never lazily",
            },
        ),
    ]
}

fn version(release: &str, arch: &str) -> Check {
    const NAME: &str = "kernel";
    let found = format!("Linux {release}, {arch}");
    if arch != "x86_64" {
        return Check::fail(NAME, found, "use an x86-64 host: Crab runs on no other");
    }
    match Version::parse(release) {
        Some(version) if version < OLDEST => Check::warn(
            NAME,
            found,
            format!("boot Linux {OLDEST} or newer: Crab is not tried on older ones"),
        ),
        _ => Check::ok(NAME, found),
    }
}

/// What is there or not, and not needed.
fn present(check: &'static str, there: bool, good: &str, bad: &str, mend: &str) -> Check {
    match there {
        true => Check::ok(check, good),
        false => Check::warn(check, bad, mend),
    }
}

/// `module`: it would be loaded with the first mount.
fn overlay(filesystems: &str, module: bool) -> Check {
    const NAME: &str = "overlayfs";
    let known = filesystems
        .lines()
        .any(|line| line.split_whitespace().last() == Some("overlay"));
    match (known, module) {
        (true, _) => Check::ok(NAME, "the kernel has it"),
        (_, true) => Check::ok(NAME, "there is a module, which is loaded when it is needed"),
        _ => Check::fail(
            NAME,
            "the kernel has no overlayfs",
            "boot a kernel that was built with CONFIG_OVERLAY_FS: files are checkpointed by it",
        ),
    }
}

/// By the lists of the directory of modules: asking modprobe might load it.
fn module_is_there(modules: &Path, name: &str) -> bool {
    ["modules.dep", "modules.builtin"].iter().any(|list| {
        let text = fs::read_to_string(modules.join(list)).unwrap_or_default();
        text.lines().any(|line| is_module(line, name))
    })
}

/// Lines such as `kernel/fs/overlayfs/overlay.ko.xz: kernel/...`.
fn is_module(line: &str, name: &str) -> bool {
    let path = line.split(':').next().unwrap_or_default();
    let file = path.rsplit('/').next().unwrap_or_default();
    file.split('.').next() == Some(name) && file.contains(".ko")
}

fn checkpoint_restore(there: bool) -> Check {
    const NAME: &str = "checkpoint-restore";
    match there {
        true => Check::ok(NAME, "the kernel lets processes be checkpointed"),
        false => Check::fail(
            NAME,
            "the kernel cannot have processes checkpointed: only files are kept",
            "boot a kernel that was built with CONFIG_CHECKPOINT_RESTORE",
        ),
    }
}

fn cgroup() -> Check {
    let is_v2 = |path: &str| Path::new(path).join("cgroup.controllers").exists();
    let layout = match (is_v2("/sys/fs/cgroup"), is_v2("/sys/fs/cgroup/unified")) {
        (true, _) => Layout::Unified(
            fs::read_to_string("/sys/fs/cgroup/cgroup.controllers").unwrap_or_default(),
        ),
        (_, true) => Layout::Hybrid,
        _ => Layout::Legacy,
    };
    layout.check()
}

/// How cgroups are mounted. What Crab needs is the id that a cgroup has in the v2
/// hierarchy.
enum Layout {
    /// v2 alone, with these controllers.
    Unified(String),
    /// v2 beside the controllers of v1.
    Hybrid,
    /// v1 alone.
    Legacy,
}

impl Layout {
    fn check(&self) -> Check {
        const NAME: &str = "cgroup";
        match self {
            Self::Hybrid => Check::ok(NAME, "v1, with v2 at /sys/fs/cgroup/unified"),
            Self::Unified(controllers) => {
                let has = |name: &str| controllers.split_whitespace().any(|one| one == name);
                let missing: Vec<&str> = ["cpu", "memory", "pids"]
                    .into_iter()
                    .filter(|name| !has(name))
                    .collect();
                if missing.is_empty() {
                    return Check::ok(NAME, "v2");
                }
                let missing = missing.join(", ");
                Check::warn(
                    NAME,
                    format!("v2, without the controllers {missing}: no limits by them"),
                    "boot without v1 controllers, which keep them (systemd.unified_cgroup_hierarchy=1)",
                )
            }
            Self::Legacy => Check::fail(
                NAME,
                "no cgroup v2 hierarchy is mounted: sandboxes cannot be told apart",
                "boot with systemd.unified_cgroup_hierarchy=1, or mount cgroup2 at /sys/fs/cgroup/unified",
            ),
        }
    }
}

/// A page that was just written has its soft-dirty bit (55) set wherever there is one.
fn tracks_dirty_pages() -> bool {
    const PAGE: usize = 4096;
    const SOFT_DIRTY: u64 = 1 << 55;
    let page = vec![1_u8; PAGE];
    let number = std::hint::black_box(page.as_ptr()) as usize / PAGE;
    let mut entry = [0; 8];
    let read = fs::File::open("/proc/self/pagemap")
        .and_then(|map| map.read_exact_at(&mut entry, number as u64 * 8));
    std::hint::black_box(&page);
    read.is_ok() && u64::from_ne_bytes(entry) & SOFT_DIRTY != 0
}

#[cfg(test)]
mod tests {
    use super::{super::check::Verdict, *};

    #[test]
    fn old_kernels_and_other_processors_are_told() {
        assert_eq!(version("6.18.44-x", "x86_64").verdict, Verdict::Ok);
        assert_eq!(
            version("5.4.0-200-generic", "x86_64").verdict,
            Verdict::Warn
        );
        assert_eq!(version("6.18.44", "aarch64").verdict, Verdict::Fail);
    }

    #[test]
    fn overlayfs_is_in_the_kernel_or_a_module() {
        assert_eq!(
            overlay("nodev\toverlay\n\text4\n", false).verdict,
            Verdict::Ok
        );
        assert_eq!(overlay("nodev\toverlayx\n", true).verdict, Verdict::Ok);
        assert_eq!(overlay("\text4\n", false).verdict, Verdict::Fail);
        assert!(is_module("kernel/fs/overlayfs/overlay.ko.xz: ", "overlay"));
        assert!(is_module("kernel/fs/overlayfs/overlay.ko", "overlay"));
        assert!(!is_module(
            "kernel/a/b.ko: kernel/fs/overlayfs/overlay.ko",
            "overlay"
        ));
        assert!(!is_module("kernel/a/my-overlay.ko:", "overlay"));
    }

    #[test]
    fn every_layout_of_cgroups_but_the_oldest_will_do() {
        let verdict = |layout: Layout| layout.check().verdict;
        let all = "cpuset cpu io memory hugetlb pids rdma misc\n";
        assert_eq!(verdict(Layout::Unified(all.into())), Verdict::Ok);
        let some = Layout::Unified("cpuset pids".into()).check();
        assert_eq!(some.verdict, Verdict::Warn);
        assert!(some.found.contains("cpu, memory"), "{}", some.found);
        assert_eq!(verdict(Layout::Hybrid), Verdict::Ok);
        assert_eq!(verdict(Layout::Legacy), Verdict::Fail);
    }

    #[test]
    fn what_is_missing_is_always_mended() {
        assert!(checkpoint_restore(false).mend.is_some());
        assert!(present("x", false, "", "", "do").mend.is_some());
        assert_eq!(present("x", true, "", "", "do").mend, None);
    }
}

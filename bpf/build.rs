// SPDX-License-Identifier: Apache-2.0
//! Compiles the kernel programs with clang, one object per set. An object serves
//! every kernel that has BTF: the loader relocates it there (CO-RE).

use std::path::{Path, PathBuf};
use std::process::Command;

const SETS: [&str; 3] = ["inodes", "exits", "syscalls"];

/// For a test.
const STRANGER: &str = "tests/kernel/stranger.bpf.c";

fn main() {
    println!("cargo:rerun-if-changed=c");
    println!("cargo:rerun-if-changed={STRANGER}");
    println!("cargo:rerun-if-changed=build.rs");
    let root = var("CARGO_MANIFEST_DIR");
    // The system call tables and argument registers are x86-64's.
    let arch = var("CARGO_CFG_TARGET_ARCH");
    assert!(
        arch == "x86_64",
        "crab-bpf has no system call tables for {arch}, only for x86_64"
    );

    let out = PathBuf::from(var("OUT_DIR"));
    for set in SETS {
        let source = format!("c/{set}.bpf.c");
        // Atomic operations that tell what was there; kernels for that set have them.
        let instructions = if set == "inodes" { "v3" } else { "generic" };
        let object = out.join(format!("{set}.bpf.o"));
        compile(&root, &source, instructions, &object);
    }
    compile(&root, STRANGER, "generic", &out.join("stranger.bpf.o"));
    list_calls(&out.join("exits.bpf.o"), &out.join("calls.rs"));
}

/// The functions of system calls that have a program, as a Rust slice: the loader has to
/// know them, and `c/rules.h` says it.
fn list_calls(object: &Path, to: &Path) {
    let mut nm = Command::new("llvm-nm");
    nm.args(["--defined-only", "--extern-only", "--just-symbol-name"])
        .arg(object);
    let listed = nm
        .output()
        .unwrap_or_else(|error| panic!("llvm-nm cannot be run: {error}"));
    assert!(listed.status.success(), "llvm-nm failed: {}", listed.status);
    let names = String::from_utf8(listed.stdout).expect("names of C");
    let calls: Vec<&str> = names
        .lines()
        .filter(|name| name.starts_with("__x64_sys_"))
        .collect();
    assert!(!calls.is_empty());
    std::fs::write(to, format!("&{calls:?}")).expect("OUT_DIR is for writing");
}

fn compile(root: &str, source: &str, instructions: &str, out: &Path) {
    let mut clang = Command::new("clang");
    clang
        .current_dir(root)
        .args(["-target", "bpf", "-O2", "-g", "-std=gnu11"])
        .args(["-Wall", "-Werror"])
        .arg(format!("-mcpu={instructions}"))
        // BTF keeps the names of the sources; the object must not depend on
        // where it was built, it is recognised by its hash.
        .arg(format!("-ffile-prefix-map={root}=."))
        // <asm/types.h>, which a cross target does not find by itself.
        .args(["-idirafter", "/usr/include/x86_64-linux-gnu"])
        .args(["-c", source, "-o"])
        .arg(out);
    run(clang, "clang (packages clang, libbpf-dev, linux-libc-dev)");

    // Drops DWARF, keeps BTF.
    let mut strip = Command::new("llvm-strip");
    strip.arg("-g").arg(out);
    run(strip, "llvm-strip (package llvm)");
    assert!(out.exists());
}

fn var(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| panic!("cargo does not set {name}"))
}

fn run(mut command: Command, what: &str) {
    match command.status() {
        Ok(status) if status.success() => {}
        Ok(status) => panic!("{what} failed: {status}"),
        Err(error) => panic!("{what} cannot be run: {error}"),
    }
}

// SPDX-License-Identifier: Apache-2.0
//! Compiles the kernel programs with clang, one object per set. An object serves
//! every kernel that has BTF: the loader relocates it there (CO-RE).

use std::path::{Path, PathBuf};
use std::process::Command;

const SETS: [&str; 2] = ["inodes", "syscalls"];

fn main() {
    println!("cargo:rerun-if-changed=c");
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
        compile(&root, set, &out.join(format!("{set}.bpf.o")));
    }
}

fn compile(root: &str, set: &str, out: &Path) {
    let mut clang = Command::new("clang");
    clang
        .current_dir(root)
        .args(["-target", "bpf", "-O2", "-g", "-std=gnu11"])
        .args(["-Wall", "-Werror"])
        // BTF keeps the names of the sources; the object must not depend on
        // where it was built, it is recognised by its hash.
        .arg(format!("-ffile-prefix-map={root}=."))
        // <asm/types.h>, which a cross target does not find by itself.
        .args(["-idirafter", "/usr/include/x86_64-linux-gnu"])
        .args(["-c", &format!("c/{set}.bpf.c"), "-o"])
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

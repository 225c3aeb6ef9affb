// SPDX-License-Identifier: Apache-2.0
//! Compiles the program that acts in the sandboxes of the inspector's proof. It needs no
//! library, so that it runs in any image, and lies below 4 GiB, so that it can use the
//! 32-bit entry of the kernel.

use std::{env, path::PathBuf, process::Command};

fn main() {
    println!("cargo:rerun-if-changed=agent");
    println!("cargo:rerun-if-changed=build.rs");
    let out = env::var_os("OUT_DIR").expect("cargo sets OUT_DIR");
    let out = PathBuf::from(out).join("agent");
    let built = Command::new("gcc")
        .args(["-std=gnu11", "-O1", "-Wall", "-Werror", "-s"])
        .args(["-nostdlib", "-static", "-no-pie", "-ffreestanding"])
        .args(["-fno-stack-protector", "-fcf-protection=none", "-mno-sse"])
        .args(["agent/agent.c", "-o"])
        .arg(&out)
        .status();
    match built {
        Ok(status) if status.success() => {}
        Ok(status) => panic!("gcc failed: {status}"),
        Err(error) => panic!("gcc (package gcc) cannot be run: {error}"),
    }
}

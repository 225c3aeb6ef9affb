// SPDX-License-Identifier: Apache-2.0
//! Generates the ttrpc bindings from `proto/`, in pure Rust: no protoc is
//! needed.

use std::{env, error::Error, fs, path::Path};

use ttrpc_codegen::{Codegen, Customize, ProtobufCustomize};

/// One generated module each: two services with methods of the same name
/// cannot share one.
const PROTOS: [&str; 3] = ["tracer", "schedule", "sandbox"];

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=proto");
    let out = env::var("OUT_DIR")?;
    Codegen::new()
        .out_dir(&out)
        .inputs(PROTOS.map(|name| format!("proto/{name}.proto")))
        .include("proto")
        .rust_protobuf()
        .rust_protobuf_customize(ProtobufCustomize::default().gen_mod_rs(false))
        .customize(Customize {
            async_all: true,
            ..Default::default()
        })
        .run()?;
    // Inner attributes are not allowed where a file is included.
    for name in PROTOS {
        for file in [format!("{name}.rs"), format!("{name}_ttrpc.rs")] {
            let path = Path::new(&out).join(file);
            let text = fs::read_to_string(&path)?;
            let kept: Vec<&str> = text
                .lines()
                .filter(|line| !line.starts_with("#![") && !line.starts_with("//!"))
                .collect();
            fs::write(&path, kept.join("\n"))?;
        }
    }
    Ok(())
}

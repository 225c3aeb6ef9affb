// SPDX-License-Identifier: Apache-2.0

//! How fast the store takes in content, and where the time goes: `speed [FILE]`, by default
//! memory as programs have it, half of it of a kind that compresses.

use std::{fs::File, hint::black_box, io::Write, time::Instant};

use crab_store::{CHUNK, Digest, Earlier, SandboxId, Store, WINDOW, Window};

const LEN: usize = 256 << 20;

/// Pages of text, of numbers, of pointers and of noise, in turn.
fn memory() -> Vec<u8> {
    let mut bytes = Vec::with_capacity(LEN);
    let mut state: u64 = 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    while bytes.len() < LEN {
        for _ in 0..512 {
            match bytes.len() >> 12 & 3 {
                0 => bytes.extend_from_slice(
                    [b"the word", b" is not ", b"a page, ", b"a number"][next() as usize & 3],
                ),
                1 => bytes.extend_from_slice(&(next() & 0xffff).to_le_bytes()),
                2 => {
                    let pointer = 0x7f00_0000_0000 | next() & 0xff_fff0;
                    bytes.extend_from_slice(&pointer.to_le_bytes());
                }
                _ => bytes.extend_from_slice(&next().to_le_bytes()),
            }
        }
    }
    bytes
}

fn tell(what: &str, len: usize, start: Instant) {
    let seconds = start.elapsed().as_secs_f64();
    println!("{what:24} {:8.0} MB/s", len as f64 / 1e6 / seconds);
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let bytes = match std::env::args_os().nth(1) {
        Some(path) => std::fs::read(path)?,
        None => memory(),
    };
    let len = bytes.len();
    let start = Instant::now();
    for chunk in bytes.chunks(CHUNK) {
        black_box(Digest::of(chunk));
    }
    tell("hash", len, start);
    for level in [-20, -10, -7, -5, -3, -1, 1, 3] {
        let mut compressor = zstd::bulk::Compressor::new(level)?;
        let mut to = vec![0; zstd::zstd_safe::compress_bound(CHUNK)];
        let (start, mut total) = (Instant::now(), 0);
        for chunk in bytes.chunks(CHUNK) {
            total += compressor.compress_to_buffer(chunk, &mut to)?;
        }
        let percent = total as f64 * 100.0 / len as f64;
        tell(&format!("zstd {level} to {percent:.1} %"), len, start);
    }
    let dir = tempfile::tempdir()?;
    let path = dir.path().join("pages");
    File::create(&path)?.write_all(&bytes)?;
    let file = File::open(&path)?;
    let store = Store::create(dir.path().join("store"))?;
    let writer = store.writer(&SandboxId::new("default", "speed")?)?;
    let mut pack = writer.begin()?;
    let start = Instant::now();
    let content = pack.put_file(&file)?;
    tell("a file", content.size as usize, start);
    println!(
        "stored {:.1} %",
        pack.bytes_stored() as f64 * 100.0 / len as f64
    );
    let windows: Vec<Window> = (0..len as u64)
        .step_by(WINDOW as usize)
        .map(|at| Window {
            address: at,
            offset: at,
            len: WINDOW.min(len as u64 - at) as u32,
        })
        .collect();
    let mut pack = writer.begin()?;
    let start = Instant::now();
    pack.put_pages(&file, &windows, &Earlier::new())?;
    tell("pages", len, start);
    Ok(())
}

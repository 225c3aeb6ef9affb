// SPDX-License-Identifier: Apache-2.0

//! Pages of memory: what a second image takes, and that each image is as it was.

mod support;

use std::fs::{self, File};

use crab_store::{
    Earlier, ImageFile, Manifest, PAGE, PackWriter, Pages, ProcessRef, SandboxWriter, Store,
    TurnId, WINDOW, Window, earlier,
};

use support::{id, manifest, noise, process_image, tree_with};

/// A sandbox whose checkpoints hold one process image each.
struct Sandbox {
    _root: tempfile::TempDir,
    writer: SandboxWriter,
}

impl Sandbox {
    fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        let store = Store::create(root.path()).unwrap();
        let writer = store.writer(&id()).unwrap();
        Self {
            _root: root,
            writer,
        }
    }

    fn begin(&self) -> PackWriter {
        self.writer.begin().unwrap()
    }

    fn publish(&self, mut pack: PackWriter, turn: u64, bytes: &[u8], pages: &Pages) -> Manifest {
        let mut over = image_file(bytes, pages);
        over.content.clone_from(&pages.changes);
        let image = process_image(vec![image_file(bytes, pages), over]);
        let digest = pack.put_process_image(&image).unwrap();
        let upper = pack.put_tree(&tree_with(Default::default())).unwrap();
        let spec = pack.put(b"{}").unwrap();
        let mut manifest = manifest(turn, upper, spec);
        manifest.processes = Some(ProcessRef {
            turn: TurnId(turn),
            digest,
        });
        pack.publish(manifest).unwrap()
    }
}

/// The windows of memory that is all there.
fn windows(len: usize) -> Vec<Window> {
    let window = WINDOW as usize;
    let starts = (0..len).step_by(window);
    starts
        .map(|at| Window {
            address: at as u64,
            offset: at as u64,
            len: window.min(len - at) as u32,
        })
        .collect()
}

fn put(pack: &mut PackWriter, bytes: &[u8], before: &Earlier) -> Pages {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pages-1.img");
    fs::write(&path, bytes).unwrap();
    let file = File::open(&path).unwrap();
    pack.put_pages(&file, &windows(bytes.len()), before)
        .unwrap()
}

fn image_file(bytes: &[u8], pages: &Pages) -> ImageFile {
    ImageFile {
        name: "pages-1.img".into(),
        size: bytes.len() as u64,
        content: pages.windows.clone(),
    }
}

/// Reads pages back, when they are published.
fn read(sandbox: &Sandbox, manifest: &Manifest, bytes: &[u8], pages: &Pages) -> Vec<u8> {
    let reader = sandbox.writer.store().reader(manifest).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pages-1.img");
    let file = File::create(&path).unwrap();
    let size = bytes.len() as u64;
    reader.read_segments(&pages.windows, size, &file).unwrap();
    reader.write_over(&pages.changes, size, &file).unwrap();
    fs::read(&path).unwrap()
}

#[test]
fn a_second_image_takes_little_more_than_the_pages_that_changed() {
    let sandbox = Sandbox::new();
    let first = noise(1, 16 << 20);
    let mut pack = sandbox.begin();
    let first_pages = put(&mut pack, &first, &Earlier::new());
    assert!(first_pages.changes.is_empty());
    let first_manifest = sandbox.publish(pack, 1, &first, &first_pages);
    let first_stored = first_manifest.bytes_stored;

    // Every hundredth page, one of them to zeros.
    let mut second = first.clone();
    let pages = second.len() / PAGE;
    for page in (0..pages).step_by(100) {
        second[page * PAGE + 7] ^= 1;
    }
    second[300 * PAGE..301 * PAGE].fill(0);
    let before = earlier(&image_file(&first, &first_pages), &windows(first.len()));
    let mut pack = sandbox.begin();
    let second_pages = put(&mut pack, &second, &before);
    assert_eq!(second_pages.changes.len(), pages.div_ceil(100));
    let second_manifest = sandbox.publish(pack, 2, &second, &second_pages);
    let stored = second_manifest.bytes_stored;
    assert!(
        stored * 100 <= first_stored * 2,
        "{stored} of {first_stored}"
    );

    // A third builds upon the first as well, and says again what is the second's.
    let mut third = second.clone();
    third[5 * PAGE] ^= 1;
    let before = earlier(&image_file(&second, &second_pages), &windows(second.len()));
    let mut pack = sandbox.begin();
    let third_pages = put(&mut pack, &third, &before);
    let third_manifest = sandbox.publish(pack, 3, &third, &third_pages);
    let stored = third_manifest.bytes_stored;
    assert!(stored * 500 <= first_stored, "{stored} of {first_stored}");

    for (manifest, bytes, pages) in [
        (&first_manifest, &first, &first_pages),
        (&second_manifest, &second, &second_pages),
        (&third_manifest, &third, &third_pages),
    ] {
        let turn = manifest.turn;
        assert!(read(&sandbox, manifest, bytes, pages) == *bytes, "{turn}");
    }
}

#[test]
fn a_window_of_which_most_has_changed_is_written_anew() {
    let sandbox = Sandbox::new();
    let first = noise(1, 2 * WINDOW as usize);
    let mut pack = sandbox.begin();
    let first_pages = put(&mut pack, &first, &Earlier::new());
    sandbox.publish(pack, 1, &first, &first_pages);
    let mut second = first.clone();
    for page in 0..20 {
        second[page * PAGE] ^= 1;
    }
    let before = earlier(&image_file(&first, &first_pages), &windows(first.len()));
    let mut pack = sandbox.begin();
    let second_pages = put(&mut pack, &second, &before);
    assert!(second_pages.changes.is_empty());
    assert_ne!(second_pages.windows[0], first_pages.windows[0]);
    assert_eq!(second_pages.windows[1], first_pages.windows[1]);
    let manifest = sandbox.publish(pack, 2, &second, &second_pages);
    assert!(read(&sandbox, &manifest, &second, &second_pages) == second);
}

#[test]
fn pages_of_zeros_take_nothing_and_an_earlier_object_that_is_gone_is_passed_over() {
    let sandbox = Sandbox::new();
    let mut bytes = vec![0; 3 * WINDOW as usize];
    bytes[WINDOW as usize] = 1;
    let before = [(WINDOW, crab_store::Digest::of(b"gone"))].into();
    let mut pack = sandbox.begin();
    let pages = put(&mut pack, &bytes, &before);
    assert_eq!(pages.windows.len(), 1);
    let manifest = sandbox.publish(pack, 1, &bytes, &pages);
    assert!(read(&sandbox, &manifest, &bytes, &pages) == bytes);
}

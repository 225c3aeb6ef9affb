// SPDX-License-Identifier: Apache-2.0

//! What nobody keeps is removed, beside whoever writes and reads, and nothing else.

mod support;

use std::{
    collections::BTreeSet,
    fs,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    thread,
    time::Duration,
};

use crab_store::*;
use support::*;

/// Four chunks: the first is the same in all turns, the second in pairs of turns.
fn bytes_of(turn: u64) -> Vec<u8> {
    [
        noise(0, CHUNK),
        noise(1000 + turn / 2, CHUNK),
        noise(2000 + turn, 2 * CHUNK),
    ]
    .concat()
}

fn publish(writer: &SandboxWriter, turns: std::ops::Range<u64>) {
    for turn in turns {
        checkpoint(writer, turn, &bytes_of(turn)).unwrap();
        let record = JournalRecord::Turn(turn_record(turn));
        writer.append(record, Durability::Lazy).unwrap();
    }
}

fn left(sandbox: &SandboxStore) -> Vec<u64> {
    let turns = sandbox.checkpoints().unwrap();
    turns.into_iter().map(|turn| turn.0).collect()
}

fn all_read_whole(sandbox: &SandboxStore) {
    for (turn, manifest) in sandbox.manifests().unwrap() {
        let bytes = content(sandbox, &manifest.unwrap()).unwrap();
        assert!(bytes == bytes_of(turn.0), "turn {turn}");
    }
    let checked = sandbox.check(&mut |_, _| {}).unwrap();
    assert_eq!(checked.damage, []);
}

fn removed(collected: &Collected) -> Vec<u64> {
    collected.removed.keys().map(|turn| turn.0).collect()
}

#[test]
fn without_a_limit_nothing_goes() {
    let (_dir, store) = store();
    let writer = store.writer(&id()).unwrap();
    publish(&writer, 0..4);
    let collected = writer.collect(&Wanted::default()).unwrap();
    assert_eq!(removed(&collected), [0; 0]);
    assert_eq!((collected.bytes_freed, collected.kept), (0, 4));
    all_read_whole(writer.store());
}

#[test]
fn what_is_not_kept_is_freed_and_the_rest_reads_whole() {
    let (dir, store) = store();
    let writer = store.writer(&id()).unwrap();
    publish(&writer, 0..6);
    let said = writer.store().would_collect(&keep(2)).unwrap();
    assert_eq!(left(writer.store()).len(), 6, "a question changes nothing");
    let done = writer.collect(&keep(2)).unwrap();
    // The newest is kept in any case, and two beside it.
    assert_eq!(removed(&done), [0, 1, 2]);
    assert_eq!(done.removed[&TurnId(0)], "2 newer ones are kept");
    assert_eq!(
        (said.removed, said.bytes_freed),
        (done.removed.clone(), done.bytes_freed)
    );
    assert_eq!(
        (said.packs_removed, said.packs_replaced),
        (done.packs_removed, done.packs_replaced)
    );
    // Turns 1 and 2 had a pack each; that of turn 0 has the chunk that all share, that of
    // turn 2 one that turn 3 leans on.
    assert!(
        done.packs_removed >= 1 && done.packs_replaced >= 1,
        "{done:?}"
    );
    let on_disk: u64 = names(dir.path(), "packs")
        .iter()
        .map(|name| fs::metadata(dir.path().join("sandboxes/default/demo/packs").join(name)))
        .map(|metadata| metadata.unwrap().len())
        .sum();
    assert_eq!(on_disk, done.bytes_before - done.bytes_freed);
    // 3, 4, 5: one common chunk, two of pairs, two each of their own.
    assert!(on_disk < 10 * CHUNK as u64, "{on_disk}");
    all_read_whole(writer.store());
    // It has nothing left to do, and what comes after leans on what is left.
    let again = writer.collect(&keep(2)).unwrap();
    assert_eq!((again.bytes_freed, again.removed.len()), (0, 0));
    publish(&writer, 6..8);
    all_read_whole(writer.store());
    // Also for a writer that has to read it all from the disk.
    drop(writer);
    let writer = store.writer(&id()).unwrap();
    publish(&writer, 8..9);
    all_read_whole(writer.store());
    assert_eq!(left(writer.store()), [3, 4, 5, 6, 7, 8]);
}

#[test]
fn a_turn_whose_checkpoint_went_says_so_and_names_what_is_left() {
    let (_dir, store) = store();
    let writer = store.writer(&id()).unwrap();
    publish(&writer, 0..5);
    writer.collect(&keep(1)).unwrap();
    let error = writer.store().checkpoint_of(TurnId(1)).unwrap_err();
    assert_eq!(
        error.to_string(),
        "no checkpoint holds turn 1 of default/demo: checkpoint 1 was removed (one newer is kept)"
    );
    let ReadError::NoCheckpoint { left, .. } = error else {
        panic!("{error}");
    };
    assert_eq!((left.before, left.after), (None, Some(TurnId(3))));
    // Its number is not used again, though nothing newer were left.
    assert_eq!(writer.store().next_turn().unwrap(), TurnId(5));
}

#[test]
fn what_is_tagged_wished_for_in_use_or_the_newest_stays() {
    let (_dir, store) = store();
    let writer = store.writer(&id()).unwrap();
    publish(&writer, 0..7);
    let back = RollbackRecord {
        at_ms: 0,
        from: TurnId(6),
        asked: TurnId(4),
        checkpoint: TurnId(4),
        processes: false,
        took_us: 0,
        warm: false,
    };
    let record = JournalRecord::Rollback(back);
    writer.append(record, Durability::Lazy).unwrap();
    let sandbox = writer.store();
    let name: TagName = "good".parse().unwrap();
    sandbox.set_tag(&name, TurnId(1), 5).unwrap();
    sandbox
        .request_restore(RestoreRequest {
            turn: TurnId(2),
            checkpoint: TurnId(2),
            requested_ms: 0,
            fork: false,
        })
        .unwrap();
    let hold = writer.hold(TurnId(3)).unwrap();
    let wanted = Wanted {
        in_use: [TurnId(5)].into(),
        ..keep(0)
    };
    // 4 is the newest of the branch that history is on, 6 the newest by number.
    assert_eq!(removed(&writer.collect(&wanted).unwrap()), [0]);
    assert_eq!(left(sandbox), [1, 2, 3, 4, 5, 6]);
    drop(hold);
    sandbox.cancel_restore().unwrap();
    assert_eq!(removed(&writer.collect(&keep(0)).unwrap()), [2, 3, 5]);
    assert!(sandbox.delete_tag(&name).unwrap());
    assert_eq!(removed(&writer.collect(&keep(0)).unwrap()), [1]);
    all_read_whole(sandbox);
}

#[test]
fn bytes_are_kept_within_their_limit_from_the_newest_on() {
    let (dir, store) = store();
    let writer = store.writer(&id()).unwrap();
    publish(&writer, 0..8);
    let limit = 10 * CHUNK as u64;
    let wanted = Wanted {
        limits: Limits {
            bytes: Some(limit),
            ..Limits::default()
        },
        ..Wanted::default()
    };
    let done = writer.collect(&wanted).unwrap();
    let left = left(writer.store());
    assert!(!done.removed.is_empty() && left.len() >= 2, "{left:?}");
    assert!(left.ends_with(&[6, 7]), "{left:?}");
    let usage = writer.store().usage().unwrap();
    assert!(usage.packs <= limit, "{} of {limit}", usage.packs);
    all_read_whole(writer.store());
    // Within the limit nothing more goes.
    assert!(writer.collect(&wanted).unwrap().removed.is_empty());
    drop(dir);
}

#[test]
fn nothing_goes_while_it_is_not_known_what_is_needed() {
    let (dir, store) = store();
    let writer = store.writer(&id()).unwrap();
    publish(&writer, 0..4);
    let sandbox = dir.path().join("sandboxes/default/demo");
    let name: TagName = "good".parse().unwrap();
    writer.store().set_tag(&name, TurnId(0), 5).unwrap();
    let tag = sandbox.join("tags/good.json");
    let manifest = sandbox.join("manifests/00000000000000000003.json");
    let packs = names(dir.path(), "packs");
    for path in [&tag, &manifest] {
        let whole = fs::read(path).unwrap();
        fs::write(path, &whole[..whole.len() / 2]).unwrap();
        let error = writer.collect(&keep(0)).unwrap_err();
        assert!(matches!(error, CollectError::Damaged(_)), "{error}");
        assert_eq!(names(dir.path(), "packs"), packs);
        assert_eq!(left(writer.store()), [0, 1, 2, 3]);
        fs::write(path, &whole).unwrap();
    }
    // Nor where a record is gone, or all are.
    let journal = sandbox.join("journal");
    let whole = fs::read(&journal).unwrap();
    let mut hurt = whole.clone();
    hurt[whole.len() / 2] ^= 1;
    for text in [hurt, vec![0; whole.len()]] {
        fs::write(&journal, text).unwrap();
        let error = writer.collect(&keep(0)).unwrap_err();
        assert!(matches!(error, CollectError::Damaged(_)), "{error}");
        assert_eq!(left(writer.store()), [0, 1, 2, 3]);
    }
    fs::write(&journal, whole).unwrap();
    // Nor where a tree that says what is needed cannot be read.
    let kept = [0, 2, 3].map(|turn| writer.store().manifest(TurnId(turn)).unwrap().unwrap());
    let needed: BTreeSet<PackId> = kept.into_iter().flat_map(|kept| kept.packs).collect();
    for pack in needed {
        let path = sandbox.join(format!("packs/{pack}.pack"));
        let whole = fs::read(&path).unwrap();
        fs::write(&path, b"").unwrap();
        let error = writer.collect(&keep(1));
        assert!(error.is_err(), "{error:?}");
        assert_eq!(left(writer.store()), [0, 1, 2, 3]);
        fs::write(&path, whole).unwrap();
    }
    assert_eq!(removed(&writer.collect(&keep(1)).unwrap()), [1]);
}

#[test]
fn a_checkpoint_leans_on_no_pack_that_none_names() {
    let (dir, store) = store();
    let writer = store.writer(&id()).unwrap();
    publish(&writer, 0..2);
    let sandbox = writer.store().clone();
    drop(writer);
    let [first, second] = [0, 1].map(|turn| sandbox.manifest(TurnId(turn)).unwrap().unwrap());
    // As if its writer had been killed before it was published, and before all of its pack was
    // on the disk. A reader keeps the next writer from removing that.
    let of_sandbox = dir.path().join("sandboxes/default/demo");
    fs::remove_file(of_sandbox.join("manifests/00000000000000000001.json")).unwrap();
    let reader = sandbox.reader(&first).unwrap();
    for pack in second
        .packs
        .iter()
        .filter(|pack| !first.packs.contains(pack))
    {
        let path = of_sandbox.join(format!("packs/{pack}.pack"));
        let mut bytes = fs::read(&path).unwrap();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        fs::write(&path, bytes).unwrap();
    }
    let writer = store.writer(&id()).unwrap();
    publish(&writer, 1..2);
    drop(reader);
    let second = sandbox.manifest(TurnId(1)).unwrap().unwrap();
    assert!(content(&sandbox, &second).unwrap() == bytes_of(1));
}

#[test]
fn a_checkpoint_in_the_making_keeps_what_it_leans_on() {
    let (_dir, store) = store();
    let writer = store.writer(&id()).unwrap();
    publish(&writer, 0..4);
    // Turn 1's own content, which nothing else needs.
    let mut pack = writer.begin().unwrap();
    let content_of_1 = pack.put_stream(&mut bytes_of(1).as_slice()).unwrap();
    let done = writer.collect(&keep(0)).unwrap();
    assert_eq!(removed(&done), [0, 1, 2]);
    assert!(done.postponed.is_some(), "{done:?}");
    let upper = pack.put_tree(&tree_with(content_of_1)).unwrap();
    let spec = pack.put(b"{\"ociVersion\":\"1.2.0\"}").unwrap();
    let published = pack.publish(manifest(4, upper, spec)).unwrap();
    assert!(content(writer.store(), &published).unwrap() == bytes_of(1));
    // One that is given up leans on nothing any more.
    let mut pack = writer.begin().unwrap();
    pack.put_stream(&mut bytes_of(3).as_slice()).unwrap();
    drop(pack);
    let record = JournalRecord::Turn(turn_record(4));
    writer.append(record, Durability::Lazy).unwrap();
    let done = writer.collect(&keep(0)).unwrap();
    assert_eq!((removed(&done), done.postponed), (vec![3], None));
    assert!(content(writer.store(), &published).unwrap() == bytes_of(1));
}

#[test]
fn a_reader_has_its_checkpoint_to_the_end() {
    let (_dir, store) = store();
    let writer = store.writer(&id()).unwrap();
    publish(&writer, 0..4);
    let sandbox = store.sandbox(&id()).unwrap();
    let manifest = sandbox.manifest(TurnId(0)).unwrap().unwrap();
    let reader = sandbox.reader(&manifest).unwrap();
    let done = writer.collect(&keep(0)).unwrap();
    assert_eq!(removed(&done), [0, 1, 2]);
    assert_eq!(
        done.postponed.as_deref(),
        Some("a checkpoint is being read")
    );
    assert_eq!(done.bytes_freed, 0);
    // Nor does another writer take it for a leftover.
    drop(writer);
    let writer = store.writer(&id()).unwrap();
    let tree = reader.tree(manifest.files.upper).unwrap();
    for segment in tree.segments() {
        reader.get(segment.digest).unwrap();
    }
    drop(reader);
    let again = writer.collect(&keep(0)).unwrap();
    assert!(
        again.bytes_freed > 0 && again.postponed.is_none(),
        "{again:?}"
    );
    // Who comes too late is told why.
    let error = sandbox.reader(&manifest).err().unwrap();
    assert!(error.to_string().contains("just been removed"), "{error}");
}

/// Ends what goes on beside a test, however that ends.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn readers_and_a_writer_in_a_loop_never_see_a_half_beside_removals_in_a_loop() {
    let (_dir, store) = store();
    let writer = store.writer(&id()).unwrap();
    publish(&writer, 0..4);
    let mut newest = 59;
    let over = AtomicBool::new(false);
    let [reads, late, removals] = [const { AtomicU64::new(0) }; 3];
    thread::scope(|scope| {
        // Also when one of these fails: a scope waits for its threads.
        let _over = Over(&over);
        let mut threads = Vec::new();
        for number in 0..2u64 {
            let sandbox = store.sandbox(&id()).unwrap();
            let (over, reads, late) = (&over, &reads, &late);
            threads.push(scope.spawn(move || {
                while !over.load(Ordering::Relaxed) {
                    let turns: Vec<TurnId> = sandbox.checkpoints().unwrap().into_iter().collect();
                    // The oldest, which goes next, and the newest.
                    let turn = if number == 0 {
                        turns[0]
                    } else {
                        turns[turns.len() - 1]
                    };
                    let whole = match sandbox.manifest(turn).unwrap() {
                        Some(manifest) => content(&sandbox, &manifest),
                        None => continue,
                    };
                    match whole {
                        Ok(bytes) => {
                            assert!(bytes == bytes_of(turn.0), "turn {turn}");
                            reads.fetch_add(1, Ordering::Relaxed);
                        }
                        // Before it had begun.
                        Err(ReadError::NoCheckpoint { .. }) => {
                            late.fetch_add(1, Ordering::Relaxed);
                        }
                        Err(error) => panic!("turn {turn}: {error}"),
                    }
                    thread::sleep(Duration::from_millis(1));
                }
            }));
        }
        let (over_for_gc, removals, writer) = (&over, &removals, &writer);
        threads.push(scope.spawn(move || {
            while !over_for_gc.load(Ordering::Relaxed) {
                let done = writer.collect(&keep(2)).unwrap();
                removals.fetch_add(done.packs_removed + done.packs_replaced, Ordering::Relaxed);
            }
        }));
        let sandbox = store.sandbox(&id()).unwrap();
        scope.spawn(move || {
            for _ in 0..8 {
                sandbox.usage().unwrap();
                sandbox.would_collect(&keep(2)).unwrap();
                thread::sleep(Duration::from_millis(20));
            }
        });
        publish(writer, 4..60);
        // However slow the others are: each has done something by then.
        let is_idle = |count: &AtomicU64| count.load(Ordering::Relaxed) == 0;
        let go_on = || !threads.iter().any(|thread| thread.is_finished());
        while go_on() && (is_idle(&reads) || is_idle(removals)) {
            newest += 1;
            publish(writer, newest..newest + 1);
        }
    });
    all_read_whole(writer.store());
    let turns: BTreeSet<TurnId> = writer.store().checkpoints().unwrap();
    assert!(turns.contains(&TurnId(newest)));
}

#[test]
fn a_tag_names_a_turn_until_it_is_taken_back() {
    let (_dir, store) = store();
    let writer = store.writer(&id()).unwrap();
    publish(&writer, 0..3);
    let mut nothing = turn_record(3);
    nothing.class = Class::None;
    nothing.checkpoint = Some(TurnId(2));
    let record = JournalRecord::Turn(nothing);
    writer.append(record, Durability::Lazy).unwrap();
    let sandbox = store.sandbox(&id()).unwrap();
    let name: TagName = "good".parse().unwrap();
    let tag = sandbox.set_tag(&name, TurnId(3), 9).unwrap();
    assert_eq!((tag.turn, tag.checkpoint), (TurnId(3), TurnId(2)));
    // Saying it again is no other thing; giving it to another turn is.
    assert_eq!(sandbox.set_tag(&name, TurnId(3), 10).unwrap(), tag);
    let error = sandbox.set_tag(&name, TurnId(1), 9).unwrap_err();
    assert_eq!(error.to_string(), "good is turn 3 already");
    assert!(
        sandbox
            .set_tag(&"b".parse().unwrap(), TurnId(7), 9)
            .is_err()
    );
    assert_eq!(sandbox.tags().unwrap().len(), 1);
    assert_eq!(sandbox.tag(&name).unwrap(), Some(tag));
    assert!(sandbox.delete_tag(&name).unwrap());
    assert!(!sandbox.delete_tag(&name).unwrap());
    assert_eq!(sandbox.tag(&name).unwrap(), None);
}

#[test]
fn usage_tells_files_from_processes_and_what_is_only_one_checkpoints() {
    let (_dir, store) = store();
    let writer = store.writer(&id()).unwrap();
    publish(&writer, 0..2);
    let mut pack = writer.begin().unwrap();
    let memory = pack
        .put_stream(&mut noise(77, 4 * CHUNK).as_slice())
        .unwrap();
    let image = process_image(vec![ImageFile {
        name: "pages-1.img".to_owned(),
        size: memory.size,
        content: memory.segments,
    }]);
    let processes = pack.put_process_image(&image).unwrap();
    let before = writer.store().latest().unwrap().unwrap();
    let mut full = manifest(2, before.files.upper, before.spec);
    full.processes = Some(ProcessRef {
        turn: TurnId(2),
        digest: processes,
    });
    pack.publish(full).unwrap();
    let usage = writer.store().usage().unwrap();
    let near = |bytes: u64, chunks: u64| {
        let exact = chunks * CHUNK as u64;
        bytes >= exact && bytes < exact + CHUNK as u64 / 2
    };
    // The common chunk, that of the pair, two each.
    assert!(near(usage.files, 6), "{usage:?}");
    assert!(near(usage.processes, 4), "{usage:?}");
    assert_eq!(usage.dead, 0);
    assert!(usage.total > usage.packs && usage.packs > usage.files + usage.processes);
    let unique = |turn| usage.checkpoints[&TurnId(turn)].unique;
    assert!(near(unique(0), 2), "{usage:?}");
    // Turn 2 has the same files.
    assert_eq!(unique(1), 0);
    assert!(near(unique(2), 4), "{usage:?}");
}

#[test]
fn a_removal_ends_when_a_container_is_about_to_begin() {
    let (_dir, store) = store();
    let writer = store.writer(&id()).unwrap();
    publish(&writer, 0..3);
    let wanted = Wanted {
        yields: true,
        ..keep(9)
    };
    writer.collect(&wanted).unwrap();
    thread::scope(|scope| {
        let begins = scope.spawn(|| store.writer_within(&id(), Duration::from_secs(600)));
        // Until it is seen to wait.
        while !matches!(writer.collect(&wanted), Err(CollectError::Stopped)) {
            thread::sleep(Duration::from_millis(1));
        }
        // Who lives with the sandbox does not end for anybody.
        writer.collect(&keep(9)).unwrap();
        drop(writer);
        drop(begins.join().unwrap().unwrap());
    });
    let name = store.retire_within(&id(), Duration::ZERO).unwrap();
    all_read_whole(&store.sandbox(&name).unwrap());
}

#[test]
fn a_removal_that_is_broken_off_tells_what_it_has_removed() {
    let (dir, store) = store();
    let writer = store.writer(&id()).unwrap();
    // Packs of which more than half is dead when the last checkpoint alone is left: so many that
    // a thread that is kept waiting stops it in time.
    let packs = 400;
    let mut segments = Vec::new();
    for turn in 0..packs {
        let mut pack = writer.begin().unwrap();
        let stays = noise(1000 + turn, 2000);
        let digest = pack.put(&stays).unwrap();
        segments.push(Segment {
            offset: turn * 2000,
            len: 2000,
            digest,
        });
        let goes = pack.put_stream(&mut &*noise(turn, 8000)).unwrap();
        let mut tree = tree_with(goes);
        let file = EntryKind::File {
            size: (turn + 1) * 2000,
            content: segments.clone(),
        };
        tree.entries.push(entry(b"more", file));
        let upper = pack.put_tree(&tree).unwrap();
        let spec = pack.put(b"{}").unwrap();
        pack.publish(manifest(turn, upper, spec)).unwrap();
        let record = JournalRecord::Turn(turn_record(turn));
        writer.append(record, Durability::Lazy).unwrap();
    }
    let stop = AtomicBool::new(false);
    let wanted = Wanted {
        stop: Some(&stop),
        ..keep(0)
    };
    let done = thread::scope(|scope| {
        let collecting = scope.spawn(|| writer.collect(&wanted));
        while names(dir.path(), "manifests").len() > 1 {
            thread::yield_now();
        }
        stop.store(true, Ordering::Relaxed);
        collecting.join().unwrap().unwrap()
    });
    assert_eq!(done.removed.len() as u64, packs - 1);
    assert!(done.packs_replaced < packs - 1, "{done:?}");
    let why = done.postponed.clone().unwrap();
    assert!(why.contains("broken off"), "{why}");
    let is_whole = || writer.store().check(&mut |_, _| {}).unwrap().is_whole();
    assert!(is_whole());
    // It goes on.
    let rest = writer.collect(&keep(0)).unwrap();
    assert!(
        rest.removed.is_empty() && rest.postponed.is_none(),
        "{rest:?}"
    );
    assert_eq!(done.packs_replaced + rest.packs_replaced, packs - 1);
    assert!(is_whole());
}

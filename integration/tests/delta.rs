// SPDX-License-Identifier: Apache-2.0

//! Every kind of file comes back exactly as it was.
//!
//! A program inside makes a tree that has everything a file system can hold, another
//! one looks at it independently of Crab, a third one destroys it. Whatever way back
//! is taken, the second program has to see the same again.

use anyhow::{Context, Result, ensure};
use crab_integration::{Crab, DEBIAN, RunOptions, Sandbox, Testbed};
use crab_store::Class;

/// Makes the tree, and changes much of what the image brought.
const MAKE: &str = r#"
import ctypes, hashlib, os, shutil, socket, stat

def write(path, data=b'', mode=None):
    with open(path, 'wb') as f:
        f.write(data)
    if mode is not None:
        os.chmod(path, mode)

def noise(seed, size):
    return hashlib.shake_128(seed).digest(size)

def fill(top, in_memory):
    os.makedirs(top)
    os.chdir(top)
    write('empty')
    write('small', b'small\n')
    write('block', noise(b'block', 4096))
    write('big', noise(b'big', 5 << 20))
    write('zeros', bytes(3 << 20))
    with open('sparse', 'wb') as f:
        f.truncate(64 << 20)
        f.seek(10 << 20)
        f.write(b'in the middle')
        f.seek((64 << 20) - 7)
        f.write(b'the end')
    with open('hole at the end', 'wb') as f:
        f.write(b'data')
        f.truncate(10 << 20)
    os.symlink('/no/where', 'dangling')
    os.symlink('small', 'link')
    os.symlink('x' * 4000, 'long link')
    os.symlink(b'\xff\xfe', b'link to \xff')
    write('first name', b'one of three')
    os.link('first name', 'second name')
    os.mkdir('aside')
    os.link('first name', 'aside/third name')
    os.mkfifo('fifo', 0o640)
    os.link('fifo', 'fifo again')
    socket.socket(socket.AF_UNIX).bind('socket')
    os.mknod('null', stat.S_IFCHR | 0o666, os.makedev(1, 3))
    os.mknod('loop', stat.S_IFBLK | 0o660, os.makedev(7, 1))
    write('secret', b'secret', 0o000)
    write('owned', b'owned')
    os.chown('owned', 1234, 4321)
    os.chown('link', 4294967000, 77, follow_symlinks=False)
    write('setuid', b'program')
    os.chown('setuid', 1000, 1000)
    os.chmod('setuid', 0o6755)
    os.mkdir('sticky')
    os.chmod('sticky', 0o3777)
    os.mkdir('no access')
    write('no access/file', b'x')
    os.chmod('no access', 0)
    os.mkdir('empty directory', 0o700)
    for name in [b'\xff\xfe not utf-8', b'two\nlines', b'-rf', b' ', b'back\\slash', b'.wh.whiteout',
                 b'.wh..wh..opq', b'n' * 255, '\u00e9'.encode(), b'e\xcc\x81', b'*', b'"quotes\'', b'\x01\x1b[31m']:
        write(name, name)
    write('xattr', b'x')
    os.mkdir('xattr directory')
    attrs = [('user.short', b'1'), ('user.empty', b''), ('user.binary', bytes(range(256))),
             ('user.long', noise(b'long', 1000))]
    for path in ['xattr', 'xattr directory']:
        for name, value in attrs:
            try:
                os.setxattr(path, name, value)
            except OSError as error:
                assert in_memory, error
    write('capable', b'program', 0o755)
    os.setxattr('capable', 'security.capability', bytes.fromhex('0100000200200000' + '00' * 12))
    acl = bytes.fromhex('02000000' '01000600ffffffff' '02000400d2040000' '04000400ffffffff'
                        '10000600ffffffff' '20000000ffffffff')
    for path in ['xattr', 'xattr directory']:
        try:
            os.setxattr(path, 'system.posix_acl_access', acl)
        except OSError as error:
            assert in_memory, error
    here = os.open('.', os.O_RDONLY)
    for level in range(110):
        os.mkdir('deep' * 15)
        os.chdir('deep' * 15)
    write('bottom', b'below PATH_MAX')
    os.fchdir(here)
    os.mkdir('many')
    for n in range(1500):
        write(f'many/{n}', b'%d' % n)
    # Times last, from the leaves up.
    for path in ['big', 'sparse', 'fifo', 'null', 'secret', 'aside', 'empty directory']:
        os.utime(path, ns=(1, 1000000000123456789))
    os.utime('small', ns=(1, -86400 * 10**9 + 5))
    os.utime('empty', ns=(1, 4102444800 * 10**9 + 999999999))
    os.utime('link', ns=(1, 86400 * 10**9 + 7), follow_symlinks=False)
    os.utime('.', ns=(1, 1111111111111111111))

fill('/root/tree', False)
fill('/dev/shm/tree', True)

# What the image has: removed, replaced by another kind, changed in part, moved.
os.remove('/etc/issue')
os.rmdir('/mnt')
shutil.rmtree('/usr/share/perl5')
os.mkdir('/usr/share/perl5')
write('/usr/share/perl5/new', b'alone')
os.remove('/etc/debian_version')
os.mkdir('/etc/debian_version')
write('/etc/debian_version/inside', b'x')
os.rmdir('/srv')
write('/srv', b'a file')
os.rmdir('/opt')
os.symlink('/root', '/opt')
os.chmod('/etc/passwd', 0o600)
os.chown('/usr/share/common-licenses', 5, 6)
os.utime('/etc/group', ns=(1, 1234567890987654321))
os.setxattr('/etc/group', 'user.marked', b'yes')
with open('/etc/gai.conf', 'ab') as f:
    f.write(b'appended\n')
os.link('/etc/gai.conf', '/root/gai.conf')
os.rename('/etc/bash.bashrc', '/root/moved')
shutil.move('/usr/share/base-files', '/root/moved directory')
"#;

/// Prints one line for each file, with everything that there is to know of it but its
/// inode and its times of change and access.
const LOOK: &str = r#"
import hashlib, os, stat, sys
names = {}
out = []
# What is mounted over single files is the client's.
mounts = {line.split()[4] for line in open('/proc/self/mountinfo', 'rb')}
for top in [b'/root', b'/etc', b'/usr/share', b'/srv', b'/opt', b'/mnt', b'/media', b'/home', b'/var', b'/dev/shm', b'/tmp']:
    if not os.path.lexists(top):
        out.append((top, 'missing'))
        continue
    parent = os.open(os.path.dirname(top), os.O_RDONLY)
    todo = [(parent, os.path.basename(top), top)]
    while todo:
        at, name, path = todo.pop()
        if name is None:
            os.close(at)
            continue
        if path in mounts and path != b'/dev/shm':
            continue
        st = os.stat(name, dir_fd=at, follow_symlinks=False)
        # By way of the directory: a path may be longer than any system call takes.
        short = b'/proc/self/fd/%d/%s' % (at, name)
        line = [oct(st.st_mode), st.st_uid, st.st_gid, st.st_mtime_ns]
        line.append(sorted((k, os.getxattr(short, k, follow_symlinks=False))
                           for k in os.listxattr(short, follow_symlinks=False)))
        if stat.S_ISDIR(st.st_mode):
            fd = os.open(name, os.O_RDONLY | os.O_DIRECTORY, dir_fd=at)
            below = sorted(os.listdir(b'/proc/self/fd/%d' % fd))
            todo.append((fd, None, None))
            todo += [(fd, entry, path + b'/' + entry) for entry in reversed(below)]
        else:
            line += [st.st_rdev, st.st_size]
            line.append(names.setdefault((st.st_dev, st.st_ino), path))
        if stat.S_ISLNK(st.st_mode):
            line.append(os.readlink(name, dir_fd=at))
        if stat.S_ISREG(st.st_mode):
            digest = hashlib.sha256()
            with open(os.open(name, os.O_RDONLY, dir_fd=at), 'rb') as f:
                while block := f.read(1 << 20):
                    digest.update(block)
            line.append(digest.hexdigest())
            if st.st_size >= 10 << 20:
                line.append('sparse' if st.st_blocks * 512 < st.st_size // 2 else 'dense')
        out.append((path, line))
for path, line in out:
    print(path, line)
"#;

/// Destroys it, so that every name is another kind of file or none.
const DESTROY: &str = r#"
import os, shutil
for top in ['/root/tree', '/dev/shm/tree']:
    shutil.rmtree(top)
    os.mkdir(top)
    os.chdir(top)
    os.mkdir('small')
    open('small/inside', 'w').write('x')
    os.mkdir('fifo')
    open('sticky', 'w').write('no directory')
    os.symlink('/etc', 'aside')
    os.symlink('/etc/passwd', 'big')
    os.mkdir('link')
    os.mkdir('null')
    open('many', 'w').write('one')
open('/etc/issue', 'w').write('another')
os.mkdir('/mnt')
open('/mnt/file', 'w').write('x')
shutil.rmtree('/usr/share/perl5')
shutil.rmtree('/etc/debian_version')
os.symlink('/nowhere', '/etc/debian_version')
os.remove('/srv')
os.remove('/opt')
os.chmod('/etc/passwd', 0o644)
os.remove('/etc/group')
os.remove('/root/gai.conf')
os.remove('/root/moved')
shutil.rmtree('/root/moved directory')
shutil.rmtree('/usr/share/common-licenses')
"#;

/// Changes it in place: no name comes or goes.
const MODIFY: &str = r#"
import os
for top in ['/root/tree', '/dev/shm/tree', '/etc']:
    for at, dirs, files, fd in os.fwalk(top, topdown=False):
        for name in files:
            st = os.stat(name, dir_fd=fd, follow_symlinks=False)
            os.chown(name, st.st_uid ^ 1, st.st_gid ^ 1, dir_fd=fd, follow_symlinks=False)
            if (st.st_mode & 0o170000) == 0o100000 and st.st_size < 64 << 20:
                os.chmod(name, 0o777, dir_fd=fd)
                with open(os.open(name, os.O_RDWR, dir_fd=fd), 'r+b') as f:
                    first = f.read(1)
                    f.seek(0)
                    f.write(bytes([first[0] ^ 1]) if first else b'')
        os.fchmod(fd, 0o777)
        os.utime(fd)
"#;

fn look(crab: &Crab, sandbox: &Sandbox) -> Result<Vec<String>> {
    let (said, turn) = crab.turn(sandbox, &["python3", "-c", LOOK])?;
    ensure!(said.status == 0, "the look failed: {}", said.stderr);
    let lines: Vec<String> = said.stdout.lines().map(str::to_owned).collect();
    ensure!(lines.len() > 200, "only {} files were seen", lines.len());
    // Looking changes nothing; and right after a way back, this says that what is
    // there is what Crab thinks is there.
    ensure!(
        turn.class() == Class::None,
        "the look is {}: {} {:?}",
        turn.class(),
        turn.record.reason,
        turn.record.changed
    );
    Ok(lines)
}

/// Both lists, without what they have in common.
fn same(what: &str, found: &[String], expected: &[String]) -> Result<()> {
    let only = |a: &[String], b: &[String]| -> Vec<String> {
        let known: std::collections::HashSet<_> = b.iter().collect();
        let lines = a.iter().filter(|line| !known.contains(line));
        lines
            .take(20)
            .map(|line| line.chars().take(400).collect())
            .collect()
    };
    ensure!(
        found == expected,
        "{what}: found\n{}\nexpected\n{}",
        only(found, expected).join("\n"),
        only(expected, found).join("\n")
    );
    Ok(())
}

fn turn(crab: &Crab, sandbox: &Sandbox, script: &str) -> Result<u64> {
    let (said, turn) = crab.turn(sandbox, &["python3", "-c", script])?;
    ensure!(said.status == 0, "the script failed: {}", said.stderr);
    ensure!(turn.class() == Class::Files, "{}", turn.record.reason);
    ensure!(turn.published, "turn {} has no checkpoint", turn.number());
    Ok(turn.number())
}

#[test]
fn every_kind_of_file_comes_back_exactly() -> Result<()> {
    let testbed = Testbed::here()?;
    let crab = testbed.crab();
    for client in testbed.clients() {
        let sandbox = client.run(DEBIAN, RunOptions::without_bytecode())?;
        let with = |what: &str| format!("{what} ({})", client.name());
        let fresh = look(&crab, &sandbox)?;
        let made = turn(&crab, &sandbox, MAKE)?;
        let of_made = look(&crab, &sandbox)?;
        ensure!(of_made != fresh, "nothing was made");

        let modified = turn(&crab, &sandbox, MODIFY)?;
        let of_modified = look(&crab, &sandbox)?;
        ensure!(of_modified != of_made, "nothing was modified");
        crab.rollback(&sandbox, made)?;
        same(
            &with("back from modified"),
            &look(&crab, &sandbox)?,
            &of_made,
        )?;

        let destroyed = turn(&crab, &sandbox, DESTROY)?;
        let of_destroyed = look(&crab, &sandbox)?;
        ensure!(of_destroyed != of_made, "nothing was destroyed");
        crab.rollback(&sandbox, made)?;
        same(
            &with("back from destroyed"),
            &look(&crab, &sandbox)?,
            &of_made,
        )?;

        // To every other state, and from each.
        for (to, expected) in [
            (destroyed, &of_destroyed),
            (modified, &of_modified),
            (0, &fresh),
            (made, &of_made),
        ] {
            crab.rollback(&sandbox, to)
                .with_context(|| with(&format!("to turn {to}")))?;
            same(
                &with(&format!("at turn {to}")),
                &look(&crab, &sandbox)?,
                expected,
            )?;
        }

        // And by a new container.
        sandbox.crash()?;
        crab.restore(&sandbox, Some(made))?;
        same(&with("restored"), &look(&crab, &sandbox)?, &of_made)?;
    }
    Ok(())
}

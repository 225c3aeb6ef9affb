// SPDX-License-Identifier: Apache-2.0
//! Calls that block until somebody else acts; each is made again and again, as a server
//! does.

use std::io::Read;
use std::os::unix::net::UnixListener;

use rustix::event::epoll;

use super::*;

/// The listener, and how the agent waits at it; or a FIFO, of which it moves something to a
/// file once.
pub(crate) const WAITS: &[(&str, Call)] = &[
    ("accept", |directory| {
        let listener = UnixListener::bind(directory.join("socket")).unwrap();
        measured(|| {
            loop {
                answer(&listener);
            }
        });
    }),
    ("epoll", |directory| {
        let listener = UnixListener::bind(directory.join("socket")).unwrap();
        measured(|| {
            let queue = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
            let data = epoll::EventData::new_u64(0);
            epoll::add(&queue, &listener, data, epoll::EventFlags::IN).unwrap();
            let mut events = Vec::with_capacity(1);
            loop {
                let space = rustix::buffer::spare_capacity(&mut events);
                match epoll::wait(&queue, space, None) {
                    Ok(0) | Err(rustix::io::Errno::INTR) => {}
                    Ok(_) => answer(&listener),
                    Err(error) => panic!("{error}"),
                }
                events.clear();
            }
        });
    }),
    ("splice from a fifo", |directory| {
        let path = new(directory);
        let fifo = libc::S_IFIFO as usize | 0o600;
        did(sys(libc::SYS_mknod, &[ptr(&path), fifo]));
        let mut both = OpenOptions::new();
        both.read(true).write(true);
        let fifo = both.open(directory.join("new")).unwrap();
        let fifo = fifo.as_raw_fd() as usize;
        on_file(directory, |fd| {
            sys(libc::SYS_splice, &[fifo, 0, fd, 0, 4, 0])
        });
    }),
    ("handler", |_| {
        extern "C" fn nothing(_: libc::c_int) {}
        // SAFETY: the handler does nothing, so may interrupt anything.
        let before = unsafe { libc::signal(libc::SIGUSR1, nothing as *const () as usize) };
        assert_ne!(before, libc::SIG_ERR);
        measured(|| {
            loop {
                sys(libc::SYS_pause, &[]);
            }
        });
    }),
];

fn answer(listener: &UnixListener) {
    let (mut stream, _) = listener.accept().unwrap();
    stream.read_to_string(&mut String::new()).unwrap();
}

// SPDX-License-Identifier: Apache-2.0
//! Calls that block until somebody else acts; each is made again and again, as a server
//! does.

use std::io::Read;
use std::os::unix::net::UnixListener;

use super::{Call, did};
use crate::agent::{measured, sys};

/// The listener, and how the agent waits at it.
pub(crate) const WAITS: &[(&str, Call)] = &[
    ("accept", |directory| {
        let listener = UnixListener::bind(directory.join("socket")).unwrap();
        measured(|| answer(&listener));
    }),
    ("epoll", |directory| {
        let listener = UnixListener::bind(directory.join("socket")).unwrap();
        measured(|| {
            let epoll = rustix::event::epoll::create(rustix::event::epoll::CreateFlags::CLOEXEC);
            let epoll = epoll.unwrap();
            let (data, flags) = (
                rustix::event::epoll::EventData::new_u64(0),
                rustix::event::epoll::EventFlags::IN,
            );
            rustix::event::epoll::add(&epoll, &listener, data, flags).unwrap();
            let mut events = Vec::with_capacity(1);
            loop {
                let space = rustix::buffer::spare_capacity(&mut events);
                match rustix::event::epoll::wait(&epoll, space, None) {
                    Ok(0) | Err(rustix::io::Errno::INTR) => {}
                    Ok(_) => one(&listener),
                    Err(error) => panic!("{error}"),
                }
                events.clear();
            }
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

fn answer(listener: &UnixListener) -> ! {
    loop {
        one(listener);
    }
}

fn one(listener: &UnixListener) {
    let (mut stream, _) = listener.accept().unwrap();
    let mut word = String::new();
    did(stream.read_to_string(&mut word).map_or(-1, |_| 0));
}

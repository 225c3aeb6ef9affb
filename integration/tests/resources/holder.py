# SPDX-License-Identifier: Apache-2.0
"""Holds what programs hold, and says on request whether all of it is as it was left.

holder.py NAME...    holds the resources of these names; on each connection to the abstract
                     socket "holder" all are checked, and a line says how often that was
                     done and what is wrong, if anything is.
"""
import ctypes
import fcntl
import mmap
import os
import pty
import select
import signal
import socket
import struct
import sys
import threading
import time

libc = ctypes.CDLL(None, use_errno=True)


def must(result):
    if result == -1:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


def child(run):
    """A process that does this and nothing else."""
    pid = os.fork()
    if pid == 0:
        try:
            run()
        finally:
            os._exit(0)
    return pid


class Pipe:
    """A child answers through pipes; what was written last waits in a third one."""

    def __init__(self):
        down, up = os.pipe(), os.pipe()
        child(lambda: self.echo(down[0], up[1]))
        self.to, self.back = down[1], up[0]
        self.waiting = os.pipe()
        os.write(self.waiting[1], b"0")

    @staticmethod
    def echo(source, sink):
        while word := os.read(source, 99):
            os.write(sink, word[::-1])

    def check(self, count):
        assert os.read(self.waiting[0], 99) == b"%d" % count
        os.write(self.waiting[1], b"%d" % (count + 1))
        os.write(self.to, b"%d!" % count)
        assert os.read(self.back, 99) == (b"%d!" % count)[::-1]


class Stream:
    """A child answers through a unix stream; its last answer waits there."""

    def __init__(self):
        self.end, other = socket.socketpair()
        child(lambda: Pipe.echo(other.fileno(), other.fileno()))
        other.close()
        self.end.send(b"x0")

    def check(self, count):
        assert self.end.recv(99) == b"%dx" % count
        self.end.send(b"x%d" % (count + 1))
        select.select([self.end], [], [])


class Datagram:
    """Datagrams keep their bounds, also those that wait."""

    def __init__(self):
        self.ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.ends[0].send(b"0")
        self.ends[0].send(b"second")

    def check(self, count):
        assert self.ends[1].recv(99) == b"%d" % count
        assert self.ends[1].recv(99) == b"second"
        self.ends[0].send(b"%d" % (count + 1))
        self.ends[0].send(b"second")


class Named:
    """A socket with a name is listened at, and somebody is connected."""

    PATH = "/root/named.sock"

    def __init__(self):
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(self.PATH)
        self.listener.listen()
        self.connected = self.connect()

    def connect(self):
        to = socket.socket(socket.AF_UNIX)
        to.connect(self.PATH)
        return to, self.listener.accept()[0]

    def check(self, count):
        for to, back in [self.connected, self.connect()]:
            to.send(b"%d" % count)
            assert back.recv(99) == b"%d" % count


class Locks:
    """Nobody else gets a lock that is held, of either kind."""

    def __init__(self):
        self.whole = open("/root/whole.lock", "w")
        fcntl.flock(self.whole, fcntl.LOCK_EX)
        self.part = open("/root/part.lock", "w")
        fcntl.lockf(self.part, fcntl.LOCK_EX, 10, 5)

    def check(self, count):
        def try_both():
            for path, lock in [("/root/whole.lock", fcntl.flock), ("/root/part.lock", fcntl.lockf)]:
                with open(path, "w") as other:
                    try:
                        lock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    except OSError:
                        continue
                os._exit(1)

        assert os.waitpid(child(try_both), 0)[1] == 0


class Nameless:
    """A file of some size that was removed is still there for who has it open."""

    SIZE = 3 << 20

    def __init__(self):
        self.file = open("/root/nameless", "w+b", buffering=0)
        self.file.write(b"0" * self.SIZE)
        os.unlink("/root/nameless")

    def check(self, count):
        self.file.seek(0)
        assert self.file.read() == b"%d" % (count % 10) * self.SIZE
        self.file.seek(0)
        self.file.write(b"%d" % ((count + 1) % 10) * self.SIZE)


class Inotify:
    """A watch tells of what happens in its directory."""

    def __init__(self):
        os.mkdir("/dev/shm/watched")
        self.fd = must(libc.inotify_init1(os.O_NONBLOCK))
        must(libc.inotify_add_watch(self.fd, b"/dev/shm/watched", 0x100))

    def check(self, count):
        open(f"/dev/shm/watched/{count}", "w").close()
        assert b"%d\0" % count in os.read(self.fd, 999)


class Events:
    """An eventfd keeps its count, and an epoll set tells of it; a signal waits in a signalfd."""

    def __init__(self):
        self.event = os.eventfd(5, os.EFD_NONBLOCK)
        self.set = select.epoll()
        self.set.register(self.event, select.EPOLLIN)
        mask = ctypes.create_string_buffer(128)
        libc.sigemptyset(mask)
        libc.sigaddset(mask, signal.SIGUSR2)
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2])
        self.signal = must(libc.signalfd(-1, mask, os.O_NONBLOCK))
        os.kill(os.getpid(), signal.SIGUSR2)

    def check(self, count):
        assert self.set.poll(0) == [(self.event, select.EPOLLIN)]
        assert os.eventfd_read(self.event) == 5
        assert self.set.poll(0) == []
        os.eventfd_write(self.event, 5)
        number = struct.unpack_from("I", os.read(self.signal, 128))[0]
        assert number == signal.SIGUSR2
        os.kill(os.getpid(), signal.SIGUSR2)


class Timers:
    """Timers run on: one of each kind, an hour long and at an interval of another."""

    def __init__(self):
        hours = struct.pack("4q", 3600, 0, 3600, 0)
        self.fd = must(libc.timerfd_create(time.CLOCK_MONOTONIC, 0))
        must(libc.timerfd_settime(self.fd, 0, hours, None))
        signal.setitimer(signal.ITIMER_REAL, 3600, 3600)
        nothing = struct.pack("qii48x", 0, 0, 1)  # SIGEV_NONE
        self.posix = ctypes.c_void_p()
        must(libc.timer_create(time.CLOCK_MONOTONIC, nothing, ctypes.byref(self.posix)))
        must(libc.timer_settime(self.posix, 0, hours, None))

    def check(self, count):
        def left(get, timer):
            value = ctypes.create_string_buffer(32)
            must(get(timer, value))
            return struct.unpack("4q", value.raw)[::2]

        by_signal = signal.getitimer(signal.ITIMER_REAL)
        for interval, rest in [
            left(libc.timerfd_gettime, self.fd),
            left(libc.timer_gettime, self.posix),
            by_signal[::-1],
        ]:
            assert interval == 3600 and 0 < rest <= 3600, (interval, rest)


class Threads:
    """Threads wait for each other, and keep what is theirs."""

    def __init__(self):
        self.ask, self.tell = threading.Semaphore(0), threading.Semaphore(0)
        self.counted = 0
        threading.Thread(target=self.count, name="counts", daemon=True).start()

    def count(self):
        while self.ask.acquire():
            self.counted += 1
            self.tell.release()

    def check(self, count):
        self.ask.release()
        self.tell.acquire()
        assert self.counted == count + 1
        assert len(os.listdir("/proc/self/task")) >= 2


class Zombie:
    """A child that has ended can still be waited for."""

    def __init__(self):
        self.pid = child(lambda: os._exit(7))

    def check(self, count):
        assert os.waitpid(self.pid, 0)[1] >> 8 == 7
        self.pid = child(lambda: os._exit(7))
        # Ended, and not waited for.
        os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)


class SystemV:
    """Shared memory of System V, and a child that has it, too."""

    def __init__(self):
        libc.shmat.restype = ctypes.c_void_p
        segment = must(libc.shmget(0, 4096, 0o1600))
        self.memory = ctypes.cast(libc.shmat(segment, None, 0), ctypes.POINTER(ctypes.c_ulong))
        down, up = os.pipe(), os.pipe()
        child(lambda: self.serve(down[0], up[1]))
        self.to, self.back = down[1], up[0]

    def serve(self, source, sink):
        while os.read(source, 1):
            self.memory[0] += 1
            os.write(sink, b".")

    def check(self, count):
        os.write(self.to, b".")
        os.read(self.back, 1)
        assert self.memory[0] == count + 1


class Posix(SystemV):
    """The same in a file of /dev/shm, and in memory without any name."""

    def __init__(self):
        fd = os.open("/dev/shm/counter", os.O_RDWR | os.O_CREAT)
        os.ftruncate(fd, 4096)
        self.nameless = mmap.mmap(-1, 4096)
        file = mmap.mmap(fd, 4096)
        os.close(fd)
        self.memory = memoryview(file).cast("L")
        down, up = os.pipe(), os.pipe()
        child(lambda: self.serve(down[0], up[1]))
        self.to, self.back = down[1], up[0]

    def serve(self, source, sink):
        while os.read(source, 1):
            self.memory[0] += 1
            self.nameless[0] += 1
            os.write(sink, b".")

    def check(self, count):
        super().check(count)
        assert self.nameless[0] == count + 1


class Name:
    """The name that a thread gives itself."""

    def __init__(self):
        must(libc.prctl(15, b"held by name"))

    def check(self, count):
        with open("/proc/self/comm") as comm:
            assert comm.read() == "held by name\n"


class Terminal:
    """A terminal inside: what is typed at its master is echoed, and heard at the other end."""

    def __init__(self):
        self.pid, self.master = pty.fork()
        if self.pid == 0:
            while line := sys.stdin.readline():
                print("heard", line.strip(), flush=True)
            os._exit(0)

    def check(self, count):
        os.write(self.master, b"word%d\n" % count)
        text = b""
        while b"heard word%d\r\n" % count not in text:
            text += os.read(self.master, 99)
        assert os.tcgetpgrp(self.master) == self.pid


class Tcp:
    """A port is listened at, and a child is connected; what it said last waits."""

    def __init__(self):
        self.listener = socket.create_server(("127.0.0.1", 7000))
        child(self.talk)
        self.end = self.listener.accept()[0]

    @staticmethod
    def talk():
        to = socket.create_connection(("127.0.0.1", 7000))
        to.send(b"ready")
        Pipe.echo(to.fileno(), to.fileno())

    def check(self, count):
        expected = b"%dx" % count if count else b"ready"
        assert self.end.recv(99) == expected
        self.end.send(b"x%d" % (count + 1))
        select.select([self.end], [], [])
        with socket.create_connection(("127.0.0.1", 7000)) as another:
            self.listener.accept()[0].send(b"hello")
            assert another.recv(99) == b"hello"


def main():
    server = socket.socket(socket.AF_UNIX)
    server.bind("\0holder")
    held = {name: globals()[name]() for name in sys.argv[1:]}
    server.listen()
    count = 0
    while True:
        client = server.accept()[0]
        wrong = []
        for name, resource in held.items():
            try:
                resource.check(count)
            except Exception as error:  # whatever it is, it is what the test wants to know
                line = error.__traceback__.tb_lineno
                wrong.append(f"{name}: {type(error).__name__} {error} (line {line})")
        count += 1
        client.send(f"{count} {'; '.join(wrong) or 'all is well'}\n".encode())
        client.close()


if __name__ == "__main__":
    main()

# SPDX-License-Identifier: Apache-2.0
#
# A process whose memory is a function of what it was told, and in what order.
#
# `start` leaves it running and returns when it is ready; `poke N` tells it a number and returns
# when its memory has changed. Its memory: one private anonymous mapping, which begins with the
# magic and the count of pokes. A poke writes to every eighth page what follows from the number
# and from what was on that page and on the one before it. Between pokes it is blocked in a
# read of a FIFO, and nothing else wakes it.

import hashlib
import mmap
import os
import select
import sys

HERE = "/var/tmp/crab-probe"
MAGIC = b"crab probe, version 1 \xc3\xb7\x91\x07\xee\x9a\x11\xd4\x8f\x02"
SIZE = 1 << 20
PAGE = 4096
PATIENCE = 60


def derive(memory, number):
    count = int.from_bytes(memory[32:40], "little") + 1
    memory[32:40] = count.to_bytes(8, "little")
    last = b""
    for at in range(PAGE * ((count % 8) or 8), SIZE, 8 * PAGE):
        seed = hashlib.sha256(last + number + memory[at : at + PAGE]).digest()
        memory[at : at + PAGE] = last = hashlib.shake_256(seed).digest(PAGE)


def run(ready):
    memory = mmap.mmap(-1, SIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory[40:48] = bytes(8)
    # Open for both, so that no end of file is ever read.
    numbers = os.open("in", os.O_RDWR)
    answers = os.open("out", os.O_RDWR)
    null = os.open("/dev/null", os.O_RDWR)
    for descriptor in range(3):
        os.dup2(null, descriptor)
    os.close(null)
    # Last: who looks for it finds it whole.
    memory[: len(MAGIC)] = MAGIC
    os.write(ready, b"y")
    os.close(ready)
    while True:
        number = os.read(numbers, 32)
        derive(memory, number)
        os.write(answers, b"y")


def start():
    for name in ("in", "out"):
        if os.path.exists(name):
            os.unlink(name)
        os.mkfifo(name, 0o600)
    wait, ready = os.pipe()
    if os.fork() == 0:
        os.setsid()
        os.close(wait)
        run(ready)
    os.close(ready)
    return os.read(wait, 1) == b"y"


def poke(number):
    answers = os.open("out", os.O_RDONLY | os.O_NONBLOCK)
    try:
        numbers = os.open("in", os.O_WRONLY | os.O_NONBLOCK)
    except OSError:
        sys.exit("no probe runs here: nobody reads %s/in" % HERE)
    os.write(numbers, number.encode().ljust(32))
    if not select.select([answers], [], [], PATIENCE)[0]:
        sys.exit("the probe has not answered for %s s" % PATIENCE)
    return os.read(answers, 1) == b"y"


os.chdir(HERE)
sys.exit(0 if (start() if sys.argv[1] == "start" else poke(sys.argv[2])) else 1)

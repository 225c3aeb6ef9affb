# SPDX-License-Identifier: Apache-2.0
#
# Regions of memory, each of which changes in another way: it is written to, or comes to hold something else by a way that a
# kernel which tracks written pages (soft-dirty bits) does not always see. Arguments: its name, and of how many MiB its
# image has to be at least. Answers every request with what the regions hold; the request may be a word:
#
#   pid      the answer is its pid
#   move     one region is moved over another
#   change   all regions change, and the process says that nothing was written
#   mark     from now on, written pages are tracked; one region is written to. The answer is whether the kernel can
#   unseen   the answer is which regions the kernel does not tell as written
#   track    what changes is tracked; the answer is which changes the kernel did not see
import ctypes, mmap, os, socket, sys

name, size = sys.argv[1], int(sys.argv[2])
PAGE, PAGES, HUGE = 4096, 16, 2 << 20
READ, WRITE, EXEC = 1, 2, 4
PRIVATE, SHARED, FIXED, ANONYMOUS, NORESERVE = 2, 1, 0x10, 0x20, 0x4000
MAYMOVE, MOVE_TO = 1, 2
libc = ctypes.CDLL(None, use_errno=True)
number = ctypes.c_size_t
for call, kinds in {
    "mmap": [number, number, ctypes.c_int, ctypes.c_int, ctypes.c_int, number],
    "munmap": [number, number],
    "mprotect": [number, number, ctypes.c_int],
    "madvise": [number, number, ctypes.c_int],
    "mremap": [number, number, number, ctypes.c_int, number],
}.items():
    getattr(libc, call).argtypes = kinds
    getattr(libc, call).restype = number


def call(function, *arguments):
    result = getattr(libc, function)(*arguments)
    if result == number(-1).value:
        raise OSError(ctypes.get_errno(), function)
    return result


def private(at, length):
    call("mmap", at, length, READ | WRITE, PRIVATE | ANONYMOUS | FIXED, -1, 0)
    call("madvise", at, length, mmap.MADV_NOHUGEPAGE)


def region(length, letter):
    """Begins with a page table of its own, and has free addresses around it."""
    room = call("mmap", 0, length + 2 * HUGE, 0, PRIVATE | ANONYMOUS | NORESERVE, -1, 0)
    at = -(-room // HUGE) * HUGE
    private(at, length)
    fill(at, length, letter)
    return at


def fill(at, length, letter):
    ctypes.memset(at, ord(letter), length)


SMALL = PAGES * PAGE
ballast = bytearray(os.urandom(size << 20))
written = region(SMALL, "A")
dropped = region(SMALL, "A")
# Its page table is moved, and no page of it is touched.
moved_from, moved = region(HUGE, "A"), region(HUGE, "B")
# Code made at run time: written to, then executable as what is before it.
code = region(2 * SMALL, "X")
toggled = code + SMALL
call("mprotect", code, SMALL, READ | EXEC)
# By a process that is gone afterwards.
shared = call("mmap", 0, SMALL, READ | WRITE, SHARED | ANONYMOUS, -1, 0)
fill(shared, SMALL, "A")
# The process itself says that nothing was written.
cleared = region(SMALL, "A")
regions = {
    "written": (written, SMALL),
    "dropped": (dropped, SMALL),
    "moved": (moved, HUGE),
    "toggled": (toggled, SMALL),
    "shared": (shared, SMALL),
    "cleared": (cleared, SMALL),
}


def clear():
    with open("/proc/self/clear_refs", "w") as file:
        file.write("4")


def move():
    call("mremap", moved_from, HUGE, HUGE, MAYMOVE | MOVE_TO, moved)
    return held()


def change():
    fill(written, SMALL, "B")
    call("madvise", dropped, SMALL, mmap.MADV_DONTNEED)
    move()
    # A new mapping behind it becomes one with it.
    private(toggled + SMALL, SMALL)
    call("mprotect", toggled, SMALL, READ)
    call("mprotect", toggled, SMALL, READ | WRITE)
    fill(toggled, SMALL, "N")
    call("mprotect", toggled, SMALL, READ | EXEC)
    call("munmap", toggled + SMALL, SMALL)
    child = os.fork()
    if child == 0:
        fill(shared, SMALL, "B")
        os._exit(0)
    os.waitpid(child, 0)
    fill(cleared, SMALL, "B")


def unseen():
    """Regions with a page that holds something and is not told as written."""
    with open("/proc/self/pagemap", "rb", buffering=0) as pagemap:

        def is_seen(page):
            entry = int.from_bytes(os.pread(pagemap.fileno(), 8, page // PAGE * 8), "little")
            return entry >> 63 == 0 or entry >> 55 & 1

        return [
            name
            for name, (at, length) in regions.items()
            if not all(is_seen(at + page) for page in range(0, length, PAGE))
        ]


def mark():
    clear()
    fill(written, SMALL, "M")
    return "untracked" if "written" in unseen() else held()


def track():
    clear()
    change()
    found = unseen()
    # All that was written to until now.
    clear()
    if "cleared" in unseen():
        found.append("cleared")
    return " ".join(found)


def held():
    def letters(at, length):
        first = {ctypes.string_at(at + page, 1) for page in range(0, length, PAGE)}
        return "".join(sorted(byte.decode() for byte in first)).replace("\0", "-")

    return " ".join(f"{name}={letters(*where)}" for name, where in regions.items())


WORDS = {
    "pid": lambda: str(os.getpid()),
    "move": move,
    "mark": mark,
    "unseen": lambda: " ".join(unseen()),
    "track": track,
}
server = socket.socket(socket.AF_UNIX)
server.bind("\0" + name)
server.listen()
while True:
    client, _ = server.accept()
    word = client.recv(64).decode()
    try:
        if word == "change":
            change()
            clear()
        answer = WORDS.get(word, held)()
    except OSError as error:
        answer = f"error {error}"
    client.sendall(answer.encode() + b"\n")
    client.close()

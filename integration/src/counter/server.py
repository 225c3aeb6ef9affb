# SPDX-License-Identifier: Apache-2.0
#
# Counts requests in memory, and only there. Arguments: its name, and of how many MiB
# its image has to be at least. What a request wants it to do are words.
#
# By a Unix socket without a file: CRIU before 4.2, as in Debian 13, cannot dump any
# TCP socket on Linux 6.16 or newer, and a socket with a file would change files.
import mmap, os, socket, sys
name, *mib = sys.argv[1:]
ballast = [bytearray(os.urandom(int(size) << 20)) for size in mib]
server = socket.socket(socket.AF_UNIX)
server.bind("\0" + name)
server.listen()
print("ready", flush=True)
count = 0
while True:
    client, _ = server.accept()
    for word in client.recv(64).decode().split():
        if word == "count":
            count += 1
        elif word == "scatter":  # one page of a hundred
            for part in ballast:
                for at in range(0, len(part), 100 * 4096):
                    part[at] = (part[at] + 1) % 256
        elif word == "print":
            print("count", count, flush=True)
        elif word == "hold":
            held = open("/root/held", "r+")
            mapped = mmap.mmap(os.open("/root/mapped", os.O_RDWR), 0)
        elif word == "store":
            mapped[0] = (mapped[0] + 1) % 256
        elif word == "write":
            open("/root/written", "a").write("x")
    client.sendall(b"%d\n" % count)
    client.close()

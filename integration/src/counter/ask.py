#!/usr/bin/python3 -B
# SPDX-License-Identifier: Apache-2.0
#
# Asks the counting server. Arguments: its name, and words for it, of which it passes
# over those that it does not know. Waits for a server that has not come up yet.
import socket, sys, time
for attempt in range(2000):
    try:
        server = socket.socket(socket.AF_UNIX)
        server.connect("\0" + sys.argv[1])
        break
    except ConnectionRefusedError:
        time.sleep(0.01)
server.sendall(" ".join(sys.argv[2:]).encode())
# To the end of the answer: then the server waits again.
while answer := server.recv(64):
    print(answer.decode(), end="")

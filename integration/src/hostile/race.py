# SPDX-License-Identifier: Apache-2.0
# Exchanges a directory and a link that leads out of the sandbox, for as long as it lives.
import ctypes, os, sys

libc = ctypes.CDLL(None)
while True:
    for top in sys.argv[1:]:
        libc.renameat2(-100, os.fsencode(top + '/dir'), -100, os.fsencode(top + '/link'), 2)

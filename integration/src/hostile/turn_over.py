# SPDX-License-Identifier: Apache-2.0
# Makes each name another kind of thing, or none. Arguments: the directory of the host that
# nothing must get at, the places.
import fcntl, os, struct, subprocess, sys

canary = sys.argv[1]
for top in sys.argv[2:]:
    for path in ['file', 'dir', 'dir/append']:
        # What was made immutable.
        try:
            fd = os.open(os.path.join(top, path), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
            fcntl.ioctl(fd, 0x40086602, struct.pack('l', 0))  # FS_IOC_SETFLAGS
            os.close(fd)
        except OSError:
            pass
    names = os.listdir(os.fsencode(top))
    subprocess.run(['rm', '-rf', top], check=True)
    os.mkdir(top)
    for number, name in enumerate(names):
        path = os.path.join(os.fsencode(top), name)
        if number % 3 == 0:
            os.mkdir(path)
            os.symlink(canary, path + b'/0')
        elif number % 3 == 1:
            os.symlink(canary, path)
        else:
            with open(path, 'w') as f:
                f.write('another')

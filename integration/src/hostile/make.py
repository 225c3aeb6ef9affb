# SPDX-License-Identifier: Apache-2.0
# Makes a tree of one kind in each of the places named. Arguments: the kind, the directory
# of the host that nothing must get at, how much, the places.
import errno, fcntl, os, socket, stat, struct, sys

kind, canary, much = sys.argv[1], sys.argv[2], int(sys.argv[3])


def write(path, data=b'inside\n', mode=None):
    with open(path, 'wb') as f:
        f.write(data)
    if mode is not None:
        os.chmod(path, mode)


def links():
    up = '../' * 40
    secret = canary + '/secret'
    for name, to in [('file', secret), ('dir', canary), ('up', up + secret), ('slash', '/'), ('self', 'self'),
                     ('one', 'two'), ('two', 'one'), ('root', '/proc/1/root' + secret), ('dots', '..'), ('dot', '.'),
                     ('fd', '/proc/self/fd/3'), ('empty', '/proc/self/exe')]:
        os.symlink(to, name)
    # What was a directory with a file of the same name in it.
    os.mkdir('was a directory')
    write('was a directory/secret')
    os.symlink('x' * 4095, 'longest')
    os.symlink(b'\xff/\n', b'\xfe\n')
    os.mkdir('a')
    os.symlink('../../../..' + secret, 'a/b')
    os.symlink(canary, b'.wh.a')


def special():
    for name, type, major, minor in [('mem', 'c', 1, 1), ('null', 'c', 1, 3), ('random', 'c', 1, 9), ('kmsg', 'c', 1, 11),
                                     ('none', 'c', 0, 1), ('tty', 'c', 5, 0), ('loop', 'b', 7, 0), ('disk', 'b', 8, 0), ('vda', 'b', 254, 0)]:
        os.mknod(name, (stat.S_IFCHR if type == 'c' else stat.S_IFBLK) | 0o666, os.makedev(major, minor))
    os.mkfifo('fifo', 0o666)
    os.link('fifo', 'fifo again')
    bound = socket.socket(socket.AF_UNIX)
    bound.bind('socket')
    os.mkdir('closed')
    write('closed/inside')
    os.mkdir('closed/deeper')
    write('closed/deeper/inside')
    os.chmod('closed/deeper', 0)
    os.chmod('closed', 0)
    write('setuid', b'#!/bin/sh\n', 0o6777)
    os.mkdir('setgid')
    os.chmod('setgid', 0o7777)
    write('nobody', b'', 0)
    os.chown('nobody', 0xfffffffe, 0xfffffffe)
    os.chown('setuid', 65534, 65534)
    os.chmod('setuid', 0o6777)
    os.utime('nobody', ns=(0, -1))


def names():
    for name in [b'\xff\xfe', b'two\nlines', b'\n', b' ', b'-rf', b'*', b'n' * 255, b'\xc3' * 255, b'.wh.x', b'.wh..wh..opq',
                 b'...', b'..x', b'a\\b', b'"', b"'", b'$(reboot)', b'\x01\x1b[2J', b'CON', b'x.crab-new']:
        write(name, name)
        os.mkdir(name[:250] + b'.dir')
        write(name[:250] + b'.dir/' + name, name)


def deep():
    here = os.open('.', os.O_RDONLY)
    for level in range(much):
        os.mkdir('d' * 200)
        os.chdir('d' * 200)
    write('bottom', b'below PATH_MAX')
    os.symlink('../' * 40 + canary, 'up')
    os.fchdir(here)


def many():
    for d in range(max(much // 1000, 1)):
        os.mkdir(f'{d}')
        for n in range(min(much, 1000)):
            write(f'{d}/{n}', b'%d' % (d * 1000 + n))


def hardlinks():
    write('first', b'of many')
    for d in range(10):
        os.mkdir(f'{d}')
        for n in range(100):
            os.link('first', f'{d}/{n}')
    os.symlink(canary + '/secret', 'link')
    os.link('link', 'link again', follow_symlinks=False)
    os.mknod('device', stat.S_IFCHR | 0o600, os.makedev(1, 3))
    os.link('device', '0/device')


def sparse():
    for name, size in [('tebibyte', 1 << 40), ('empty tebibyte', 1 << 40), ('unaligned', (1 << 34) + 1)]:
        with open(name, 'wb') as f:
            f.truncate(size)
            if 'empty' not in name:
                for at in (0, 5 << 20, size // 2 - 1, size - 7):
                    f.seek(at)
                    f.write(b'islands')


def attributes():
    # Those of overlayfs itself, and as it escapes them for an overlay in an overlay.
    write('file')
    os.mkdir('dir')
    write('dir/inside')
    for path in ('file', 'dir'):
        for name, value in [('trusted.overlay.opaque', b'y'), ('trusted.overlay.redirect', canary.encode()),
                            ('trusted.overlay.metacopy', b''), ('trusted.overlay.whiteout', b'y'),
                            ('trusted.overlay.origin', b'\0' * 29), ('trusted.overlay.upper', b'x'),
                            ('trusted.overlay.overlay.opaque', b'y'), ('user.overlay.opaque', b'y'),
                            ('user.overlay.redirect', canary.encode()), ('user.overlay.metacopy', b'x'),
                            ('trusted.x', bytes(range(256))), ('security.capability', bytes.fromhex('0100000200200000' + '00' * 12))]:
            try:
                os.setxattr(path, name, value)
            except OSError:
                # The file system, or overlayfs, has it not.
                pass


def immutable():
    write('file')
    os.mkdir('dir')
    write('dir/inside')
    write('dir/append')
    for path, flag in [('dir/append', 0x20), ('file', 0x10), ('dir', 0x10)]:
        fd = os.open(path, os.O_RDONLY)
        try:
            fcntl.ioctl(fd, 0x40086602, struct.pack('l', flag))  # FS_IOC_SETFLAGS
        except OSError as error:
            # An overlay has it only where the file system below has.
            if error.errno not in (errno.EOPNOTSUPP, errno.ENOTTY):
                raise
        os.close(fd)


for top in sys.argv[4:]:
    os.mkdir(top)
    os.chdir(top)
    globals()[kind]()

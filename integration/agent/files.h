/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What programs do to files by ordinary calls. Sizes and offsets are decimal; SEED
 * tells which bytes are written.
 */
#ifndef AGENT_FILES_H
#define AGENT_FILES_H

#include "raw.h"

/* Never waits for the other end of a FIFO. */
static long open_at(const char *path, long flags)
{
	return sys4(__NR_openat, AT_FDCWD, path, flags | O_NONBLOCK, 0644);
}

/* write PATH SEED SIZE: a new file, or other content for an old one. */
static long op_write(char **a)
{
	long fd = open_at(a[0], O_WRONLY | O_CREAT | O_TRUNC), n = number(a[2]);
	long ret = fd < 0 ? fd : write_all(fd, filled(number(a[1]), n), n);

	sys1(__NR_close, fd);
	return ret;
}

/* append PATH SEED SIZE */
static long op_append(char **a)
{
	long fd = open_at(a[0], O_WRONLY | O_APPEND), n = number(a[2]);
	long ret = fd < 0 ? fd : write_all(fd, filled(number(a[1]), n), n);

	sys1(__NR_close, fd);
	return ret;
}

/* overwrite PATH SEED SIZE OFFSET: in place, by a vector. */
static long op_overwrite(char **a)
{
	long fd = open_at(a[0], O_RDWR), n = number(a[2]);
	char *bytes = filled(number(a[1]), n);
	struct { char *base; long size; } parts[2] = { { bytes, n / 2 }, { bytes + n / 2, n - n / 2 } };
	long ret = fd < 0 ? fd : sys5(__NR_pwritev, fd, parts, 2, number(a[3]), 0);

	sys1(__NR_close, fd);
	return ret;
}

/* touched PATH: opened for writing, and nothing written. */
static long op_touched(char **a)
{
	long fd = open_at(a[0], O_RDWR);

	sys3(__NR_write, fd, "", 0);
	return sys1(__NR_close, fd);
}

/* truncate PATH SIZE */
static long op_truncate(char **a)
{
	return sys2(__NR_truncate, a[0], number(a[1]));
}

/* ftruncate PATH SIZE */
static long op_ftruncate(char **a)
{
	long fd = open_at(a[0], O_RDWR);
	long ret = fd < 0 ? fd : sys2(__NR_ftruncate, fd, number(a[1]));

	sys1(__NR_close, fd);
	return ret;
}

/* fallocate PATH MODE OFFSET SIZE: 0 grows, 3 punches a hole, 16 zeroes. */
static long op_fallocate(char **a)
{
	long fd = open_at(a[0], O_RDWR);
	long ret = fd < 0 ? fd
			  : sys4(__NR_fallocate, fd, number(a[1]), number(a[2]), number(a[3]));

	sys1(__NR_close, fd);
	return ret;
}

/* copyrange FROM TO SIZE */
static long op_copyrange(char **a)
{
	long from = open_at(a[0], 0), to = open_at(a[1], O_WRONLY);
	long ret = from < 0 || to < 0 ? -1
				      : sys6(__NR_copy_file_range, from, 0, to, 0, number(a[2]), 0);

	sys1(__NR_close, from);
	sys1(__NR_close, to);
	return ret;
}

/* sendfile FROM TO SIZE */
static long op_sendfile(char **a)
{
	long from = open_at(a[0], 0), to = open_at(a[1], O_WRONLY);
	long ret = from < 0 || to < 0 ? -1 : sys4(__NR_sendfile, to, from, 0, number(a[2]));

	sys1(__NR_close, from);
	sys1(__NR_close, to);
	return ret;
}

/* splice PATH SEED SIZE: out of a pipe. */
static long op_splice(char **a)
{
	long fd = open_at(a[0], O_WRONLY), n = number(a[2]), ret;
	int ends[2];

	if (fd < 0 || sys2(__NR_pipe2, ends, 0) < 0)
		return fd;
	n = n > 4096 ? 4096 : n;
	write_all(ends[1], filled(number(a[1]), n), n);
	ret = sys6(__NR_splice, ends[0], 0, fd, 0, n, 0);
	sys1(__NR_close, ends[0]);
	sys1(__NR_close, ends[1]);
	sys1(__NR_close, fd);
	return ret;
}

/* unnamed DIRECTORY SEED SIZE NAME: a file without a name, which gets one unless it is `-'. */
static long op_unnamed(char **a)
{
	long fd = open_at(a[0], O_TMPFILE_DIR | O_RDWR), n = number(a[2]), ret;
	char path[64] = "/proc/self/fd/";

	if (fd < 0)
		return fd;
	ret = write_all(fd, filled(number(a[1]), n), n);
	put_number(path + length(path), fd);
	if (!same(a[3], "-"))
		ret = sys5(__NR_linkat, AT_FDCWD, path, AT_FDCWD, a[3], AT_SYMLINK_FOLLOW);
	sys1(__NR_close, fd);
	return ret;
}

/* rename FROM TO FLAGS: 1 never over another, 2 exchanges. */
static long op_rename(char **a)
{
	return sys5(__NR_renameat2, AT_FDCWD, a[0], AT_FDCWD, a[1], number(a[2]));
}

static long op_unlink(char **a)
{
	return sys3(__NR_unlinkat, AT_FDCWD, a[0], 0);
}

static long op_rmdir(char **a)
{
	return sys3(__NR_unlinkat, AT_FDCWD, a[0], AT_REMOVEDIR);
}

static long op_mkdir(char **a)
{
	return sys3(__NR_mkdirat, AT_FDCWD, a[0], 0755);
}

/* link OLD NEW */
static long op_link(char **a)
{
	return sys5(__NR_linkat, AT_FDCWD, a[0], AT_FDCWD, a[1], 0);
}

/* symlink TARGET NEW */
static long op_symlink(char **a)
{
	return sys3(__NR_symlinkat, a[0], AT_FDCWD, a[1]);
}

/* mknod PATH MODE DEVICE */
static long op_mknod(char **a)
{
	return sys4(__NR_mknodat, AT_FDCWD, a[0], number(a[1]), number(a[2]));
}

/* socket PATH: a socket in the file system. */
static long op_socket(char **a)
{
	struct { unsigned short family; char path[108]; } address = { 1, "" };
	long fd = sys3(__NR_socket, 1, 1, 0), ret;

	put_text(address.path, a[0]);
	ret = sys3(__NR_bind, fd, &address, 2 + length(a[0]) + 1);
	sys1(__NR_close, fd);
	return ret;
}

/* chmod PATH MODE */
static long op_chmod(char **a)
{
	return sys3(__NR_fchmodat, AT_FDCWD, a[0], number(a[1]));
}

/* fchmodat2 PATH MODE: the call of 2023. */
static long op_fchmodat2(char **a)
{
	return sys4(452, AT_FDCWD, a[0], number(a[1]), AT_SYMLINK_NOFOLLOW);
}

/* chown PATH UID GID */
static long op_chown(char **a)
{
	return sys5(__NR_fchownat, AT_FDCWD, a[0], number(a[1]), number(a[2]), AT_SYMLINK_NOFOLLOW);
}

/* times PATH SECONDS NANOSECONDS */
static long op_times(char **a)
{
	long times[4] = { number(a[1]), number(a[2]), number(a[1]), number(a[2]) };

	return sys4(__NR_utimensat, AT_FDCWD, a[0], times, AT_SYMLINK_NOFOLLOW);
}

/* setxattr PATH NAME SEED */
static long op_setxattr(char **a)
{
	return sys5(__NR_lsetxattr, a[0], a[1], filled(number(a[2]), 16), 16, 0);
}

/* removexattr PATH NAME */
static long op_removexattr(char **a)
{
	return sys2(__NR_lremovexattr, a[0], a[1]);
}

/* acl PATH PERMISSIONS: what user 1000 may do, as linux/posix_acl_xattr.h lays it out. */
static long op_acl(char **a)
{
	struct { unsigned version; struct { unsigned short tag, may; unsigned who; } entries[5]; } acl = {
		2,
		{ { 1, 6, -1 }, { 2, number(a[1]), 1000 }, { 4, 4, -1 }, { 16, 7, -1 }, { 32, 4, -1 } },
	};

	return sys5(__NR_setxattr, a[0], "system.posix_acl_access", &acl, sizeof(acl), 0);
}

/* restored PATH: other content, then the old one, and the old times. Only for what fits
 * a block. */
static long op_restored(char **a)
{
	static char old[BLOCK];
	long stat[18], fd = open_at(a[0], O_RDWR), n;

	if (fd < 0)
		return fd;
	sys2(__NR_fstat, fd, stat);
	n = sys4(__NR_pread64, fd, old, BLOCK, 0);
	if (n > 0 && n == stat[6]) {
		sys4(__NR_pwrite64, fd, filled(n, n), n, 0);
		sys4(__NR_pwrite64, fd, old, n, 0);
		/* Access, then modification: st_atim and st_mtim. */
		sys4(__NR_utimensat, fd, 0, stat + 9, 0);
	}
	sys1(__NR_close, fd);
	return n;
}

/* look PATH: reads what there is to read. */
static long op_look(char **a)
{
	static char names[4096];
	long fd = open_at(a[0], 0), stat[18];

	while (sys3(__NR_read, fd, block, BLOCK) > 0)
		;
	while (sys3(__NR_getdents64, fd, names, sizeof(names)) > 0)
		;
	sys2(__NR_stat, a[0], stat);
	sys3(__NR_readlink, a[0], names, sizeof(names));
	sys3(__NR_llistxattr, a[0], names, sizeof(names));
	return sys1(__NR_close, fd);
}

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Writes that no ordinary write call tells of. */
#ifndef AGENT_ODD_H
#define AGENT_ODD_H

#include <linux/io_uring.h>
#include <linux/aio_abi.h>

#include "files.h"

static char *map_file(long fd, long size, long how)
{
	return (char *)sys6(__NR_mmap, 0, size, PROT_READ | PROT_WRITE, how, fd, 0);
}

/* map PATH SEED SIZE: stores into a shared mapping, its descriptor closed before. */
static long op_map(char **a)
{
	long fd = open_at(a[0], O_RDWR), n = number(a[2]), stat[18];
	char *at;

	if (fd < 0 || sys2(__NR_fstat, fd, stat) < 0)
		return fd;
	n = n < stat[6] ? n : stat[6];
	at = n ? map_file(fd, n, MAP_SHARED) : (char *)-EINVAL;
	sys1(__NR_close, fd);
	if ((unsigned long)at > -4096ul)
		return (long)at;
	memcpy(at, filled(number(a[1]), n), n < BLOCK ? n : BLOCK);
	return sys2(__NR_munmap, at, n);
}

/* private PATH SEED SIZE: the same into a private one. */
static long op_private(char **a)
{
	long fd = open_at(a[0], O_RDWR);
	char *at = fd < 0 ? (char *)fd : map_file(fd, 4096, MAP_PRIVATE);
	long stat[18];

	if ((unsigned long)at > -4096ul)
		return (long)at;
	sys2(__NR_fstat, fd, stat);
	if (stat[6] > 0)
		*at = number(a[1]);
	sys1(__NR_close, fd);
	return sys2(__NR_munmap, at, 4096);
}

/* uring PATH SEED SIZE: a write that is made by no call of its own. */
static long op_uring(char **a)
{
	struct io_uring_params set = { 0 };
	long ring = sys2(__NR_io_uring_setup, 4, &set), fd = open_at(a[0], O_RDWR), ret;
	struct io_uring_sqe *entry;
	char *queue;

	if (ring < 0 || fd < 0)
		return ring < 0 ? ring : fd;
	queue = (char *)sys6(__NR_mmap, 0, set.sq_off.array + set.sq_entries * 4,
			     PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, ring,
			     IORING_OFF_SQ_RING);
	entry = (void *)sys6(__NR_mmap, 0, set.sq_entries * sizeof(*entry), PROT_READ | PROT_WRITE,
			     MAP_SHARED | MAP_POPULATE, ring, IORING_OFF_SQES);
	entry->opcode = IORING_OP_WRITE;
	entry->fd = fd;
	entry->len = number(a[2]);
	entry->addr = (unsigned long)filled(number(a[1]), entry->len);
	*(unsigned *)(queue + set.sq_off.array) = 0;
	__atomic_store_n((unsigned *)(queue + set.sq_off.tail), 1, __ATOMIC_RELEASE);
	ret = sys6(__NR_io_uring_enter, ring, 1, 1, IORING_ENTER_GETEVENTS, 0, 0);
	sys1(__NR_close, ring);
	sys1(__NR_close, fd);
	return ret;
}

/* aio PATH SEED SIZE: the older interface. */
static long op_aio(char **a)
{
	struct iocb write = { .aio_lio_opcode = IOCB_CMD_PWRITE }, *list = &write;
	long fd = open_at(a[0], O_RDWR), ret;
	struct io_event done;
	aio_context_t context = 0;

	if (fd < 0)
		return fd;
	write.aio_fildes = fd;
	write.aio_nbytes = number(a[2]);
	write.aio_buf = (unsigned long)filled(number(a[1]), write.aio_nbytes);
	ret = sys2(__NR_io_setup, 1, &context);
	if (ret < 0)
		return ret;
	ret = sys3(__NR_io_submit, context, 1, &list);
	if (ret == 1)
		sys5(__NR_io_getevents, context, 1, 1, &done, 0);
	sys1(__NR_io_destroy, context);
	sys1(__NR_close, fd);
	return ret;
}

/* The 32-bit entry, with i386's numbers: everything named lies below 4 GiB, for this
 * program is not relocatable. */
static long call32(long n, long b, long c, long d)
{
	int ret;

	__asm__ volatile("int $0x80"
			 : "=a"(ret)
			 : "a"(n), "b"(b), "c"(c), "d"(d)
			 : "memory", "r8", "r9", "r10", "r11");
	return ret;
}

static char low_path[256];

/* write32 PATH SEED SIZE */
static long op_write32(char **a)
{
	long fd, ret, n = number(a[2]);

	put_text(low_path, a[0]);
	fd = call32(5, (long)low_path, O_RDWR | O_CREAT | O_NONBLOCK, 0644);
	if (fd < 0)
		return fd;
	ret = call32(4, fd, (long)filled(number(a[1]), n), n);
	call32(6, fd, 0, 0);
	return ret;
}

/* unlink32 PATH */
static long op_unlink32(char **a)
{
	put_text(low_path, a[0]);
	return call32(10, (long)low_path, 0, 0);
}

/* chmod32 PATH MODE */
static long op_chmod32(char **a)
{
	put_text(low_path, a[0]);
	return call32(15, (long)low_path, number(a[1]), 0);
}

/* memfd SEED SIZE: a file of no file system, gone with this process. */
static long op_memfd(char **a)
{
	long fd = sys2(__NR_memfd_create, "agent", 0), n = number(a[1]);

	return fd < 0 ? fd : write_all(fd, filled(number(a[0]), n), n);
}

/* shm PATH SEED: POSIX shared memory, as its library makes it. */
static long op_shm(char **a)
{
	long fd = open_at(a[0], O_RDWR | O_CREAT);
	char *at;

	if (fd < 0)
		return fd;
	sys2(__NR_ftruncate, fd, 8192);
	at = map_file(fd, 8192, MAP_SHARED);
	sys1(__NR_close, fd);
	if ((unsigned long)at > -4096ul)
		return (long)at;
	memcpy(at, filled(number(a[1]), 64), 64);
	return 0;
}

#endif

/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * What a system call that ends has changed: the same for each set that looks at
 * the calls.
 *
 * Counting happens at the end of a system call. An effect whose call is still
 * under way is counted later, never lost; who captures without a freeze must
 * know by other means that no call is in flight.
 */
#ifndef CRAB_JUDGE_H
#define CRAB_JUDGE_H

#include <linux/errno.h>

#include "attention.h"
#include "place.h"
#include "rules.h"

#define O_CREAT 00000100
#define O_TRUNC 00001000
#define O_TMPFILE_BIT 020000000
#define OPEN_MAKES (O_CREAT | O_TRUNC | O_TMPFILE_BIT)

#define MAP_TYPE 0x0f
#define MAP_SHARED 0x01
#define MAP_SHARED_VALIDATE 0x03
#define MAP_ANONYMOUS 0x20

#define OPEN_TREE_CLONE 1
#define FSCONFIG_CMD_CREATE 6

#define AF_UNIX 1
#define SOCKETCALL_BIND 2

/* A call that failed, but may have got half of its work done: fallocate and
 * open(O_CREAT) are not atomic. */
static __always_inline int half_done(long ret)
{
	switch (-ret) {
	case EINTR:
	case EIO:
	case EFAULT:
	case ENOSPC:
	case EDQUOT:
		return 1;
	default:
		return restarts(ret);
	}
}

/* The nth argument, by either calling convention. Entry code leaves them in
 * place, and nobody can change them before the programs have run. */
static __always_inline __u64 argument(struct pt_regs *regs, int is_compat, int n)
{
	if (is_compat) {
		switch (n) {
		case 0: return (__u32)regs->bx;
		case 1: return (__u32)regs->cx;
		case 2: return (__u32)regs->dx;
		case 3: return (__u32)regs->si;
		case 4: return (__u32)regs->di;
		default: return (__u32)regs->bp;
		}
	}
	switch (n) {
	case 0: return regs->di;
	case 1: return regs->si;
	case 2: return regs->dx;
	case 3: return regs->r10;
	case 4: return regs->r8;
	default: return regs->r9;
	}
}

static __always_inline int opened(struct task_struct *task, __u64 flags, long ret)
{
	if (!(flags & OPEN_MAKES))
		return 0;
	/* Only regular files are made or emptied by an open: "> /dev/null" is nothing. */
	if (ret >= 0)
		return by_file(task, ret, REGULAR, CRAB_FILES);
	return by_place(task, -1, -1, CRAB_FILES);
}

static __always_inline int mapped(struct task_struct *task, __u64 flags, __u64 fd)
{
	__u64 type = flags & MAP_TYPE;

	if (flags & MAP_ANONYMOUS || (type != MAP_SHARED && type != MAP_SHARED_VALIDATE))
		return 0;
	/* Whatever its protection now, mprotect may make it writable later. */
	return by_file(task, fd, WRITABLE, CRAB_UNSEEN);
}

static __always_inline int controlled(struct task_struct *task, unsigned int fd, __u32 command)
{
	/* A loop device writes to its file from a kernel thread. */
	if ((command >> 8 & 0xff) == 'L')
		return by_place(task, -1, -1, CRAB_UNSEEN);
	/* Only reads, by the direction bits: FS_IOC_GETFLAGS and its like. */
	if (command >> 30 == 2)
		return 0;
	switch (command) {
	case 0x0001:     /* FIBMAP */
	case 0x0002:     /* FIGETBSZ */
	case 0x541b:     /* FIONREAD */
	case 0x5421:     /* FIONBIO */
	case 0x5450:     /* FIONCLEX */
	case 0x5451:     /* FIOCLEX */
	case 0x5452:     /* FIOASYNC */
	case 0x5460:     /* FIOQSIZE */
	case 0xc020660b: /* FS_IOC_FIEMAP */
		return 0;
	}
	return by_file(task, fd, REGULAR_OR_DIRECTORY, CRAB_FILES);
}

static __always_inline int bound(struct task_struct *task, const void *address)
{
	struct {
		unsigned short family;
		char first;
	} head = {};

	if (!bpf_probe_read_user(&head, 3, address) && (head.family != AF_UNIX || !head.first))
		return 0;
	return by_place(task, -1, -1, CRAB_FILES);
}

static __always_inline int judge(struct pt_regs *regs, int is_compat, struct rule rule, long ret)
{
	struct task_struct *task = bpf_get_current_task_btf();
	__u64 first, word = 0;

	if (ret < 0 && !half_done(ret)) {
		/* An open that its file system refuses (O_DIRECT) has made the file by then. */
		if (ret != -EINVAL || (rule.kind != OPEN && rule.kind != OPEN_HOW))
			return 0;
	}

	first = argument(regs, is_compat, 0);
	switch (rule.kind) {
	case CONTENT:
		if (!ret)
			return 0;
		return by_file(task, argument(regs, is_compat, rule.arg), REGULAR, CRAB_FILES);
	case SIZE:
		return by_file(task, first, REGULAR, CRAB_FILES);
	case ATTRIBUTES:
		return by_file(task, first, ANY, CRAB_FILES);
	case OPEN:
		return opened(task, argument(regs, is_compat, rule.arg), ret);
	case OPEN_HOW:
		if (bpf_probe_read_user(&word, sizeof(word),
					(void *)argument(regs, is_compat, rule.arg)))
			word = OPEN_MAKES;
		return opened(task, word, ret);
	case CREATE:
		return opened(task, OPEN_MAKES, ret);
	case BATCH:
		if (!ret)
			return 0;
		return by_place(task, -1, -1, CRAB_FILES);
	case PATH:
		return by_place(task, -1, -1, CRAB_FILES);
	case TIMES_AT:
		if (!argument(regs, is_compat, 1))
			return by_file(task, first, ANY, CRAB_FILES);
		return by_place(task, first, -1, CRAB_FILES);
	case PATH_AT:
		return by_place(task, argument(regs, is_compat, rule.arg), -1, CRAB_FILES);
	case PATH_AT_TWO:
		return by_place(task, first, argument(regs, is_compat, 2), CRAB_FILES);
	case UNSEEN:
		return by_place(task, -1, -1, CRAB_UNSEEN);
	case MAP:
		return mapped(task, argument(regs, is_compat, 3), argument(regs, is_compat, 4));
	case MAP_OLD: {
		__u32 args[6] = {};

		if (bpf_probe_read_user(args, sizeof(args), (void *)first))
			return lost();
		return mapped(task, args[3], args[4]);
	}
	case MOUNT_CLONE:
		if (!(argument(regs, is_compat, 2) & OPEN_TREE_CLONE))
			return 0;
		return by_place(task, -1, -1, CRAB_MOUNTS);
	case MOUNT_CONFIG:
		if (argument(regs, is_compat, 1) < FSCONFIG_CMD_CREATE)
			return 0;
		return by_place(task, -1, -1, CRAB_MOUNTS);
	case MOUNT:
		return by_place(task, -1, -1, CRAB_MOUNTS);
	case CONTROL:
		return controlled(task, first, argument(regs, is_compat, 1));
	case SOCKETCALL:
		if (first != SOCKETCALL_BIND)
			return 0;
		return by_place(task, -1, -1, CRAB_FILES);
	case BIND:
		return bound(task, (void *)argument(regs, is_compat, rule.arg));
	}
	return 0;
}

#endif

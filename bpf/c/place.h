/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * Whose files an event touched: found in the kernel, at the event, from the
 * task's own fd table, root and working directory. A look from user space
 * afterwards would see whatever the sandbox has put there since.
 *
 * Two judgements:
 *   by_file    exact: the superblock of the open file is a watched one, whoever
 *              holds it open.
 *   by_place   generous, for calls that name their target by path: the task is
 *              in a watched cgroup, or its root, working directory or dirfd is
 *              on a watched superblock. Counts too much (a bind mount), and
 *              then user space compares and finds nothing. It misses a task
 *              outside of the sandbox that reaches in by an absolute path
 *              through its own root: the path is not resolved here.
 *
 * The fd is looked up at the end of the call. A thread that replaces its
 * sibling's fd while a write to it is in flight can hide that write; a slot
 * that is empty by then counts as lost.
 */
#ifndef CRAB_PLACE_H
#define CRAB_PLACE_H

#include "whose.h"

#define S_IFMT 0170000
#define S_IFDIR 0040000
#define S_IFREG 0100000

static __always_inline int by_device(__u64 dev, __u32 which)
{
	struct crab_counters *counters = bpf_map_lookup_elem(&devices, &dev);

	if (!counters)
		return 0;
	crab_add(counters, which);
	return 1;
}

/* A read of kernel memory failed: it concerns the sandbox that the task is in,
 * or else any of them. */
static __noinline int lost(void)
{
	__u32 zero = 0;
	__u64 *count;

	if (by_cgroup(CRAB_LOST))
		return 0;
	count = bpf_map_lookup_elem(&lost_anywhere, &zero);
	if (count)
		__sync_fetch_and_add(count, 1);
	return 0;
}

enum slot { FOUND, EMPTY, UNREADABLE };

/* Each read of kernel memory costs some 25 ns: they are made one by one, as far
 * as the answer needs them. A write to a pipe needs three. */
static __always_inline enum slot open_file(struct task_struct *task, unsigned int fd,
					   struct file **file, struct inode **inode)
{
	struct fdtable *fdt = task->files->fdt;

	if (fd >= fdt->max_fds)
		return EMPTY;
	if (bpf_probe_read_kernel(file, sizeof(*file), fdt->fd + fd))
		return UNREADABLE;
	if (!*file)
		return EMPTY;
	return BPF_CORE_READ_INTO(inode, *file, f_inode) ? UNREADABLE : FOUND;
}

static __always_inline int device_of(struct inode *inode, __u64 *dev)
{
	struct super_block *sb;
	__u32 s_dev;

	if (BPF_CORE_READ_INTO(&sb, inode, i_sb) || BPF_CORE_READ_INTO(&s_dev, sb, s_dev))
		return -1;
	*dev = s_dev;
	return 0;
}

static __always_inline int dirfd_is_watched(struct task_struct *task, int fd, __u32 which)
{
	struct inode *inode;
	struct file *file;
	__u64 dev;

	if (fd < 0) /* AT_FDCWD: the working directory was looked at */
		return 0;
	switch (open_file(task, fd, &file, &inode)) {
	case FOUND:
		return device_of(inode, &dev) ? lost() : by_device(dev, which);
	case EMPTY: /* an absolute path needs no dirfd */
		return 0;
	default:
		return lost();
	}
}

/* Where no dirfd takes part, pass -1. */
static __noinline int by_place(struct task_struct *task, int dirfd, int other, __u32 which)
{
	struct fs_struct *fs = task->fs;

	if (by_cgroup(which))
		return 1;
	if (by_device(fs->root.dentry->d_sb->s_dev, which))
		return 1;
	if (by_device(fs->pwd.dentry->d_sb->s_dev, which))
		return 1;
	if (dirfd_is_watched(task, dirfd, which))
		return 1;
	return dirfd_is_watched(task, other, which);
}

/* What an open file must be for the call to count. */
enum only { ANY, REGULAR, REGULAR_OR_DIRECTORY, WRITABLE };

static __noinline int by_file(struct task_struct *task, unsigned int fd, enum only only,
			      __u32 which)
{
	unsigned short mode, type;
	unsigned int f_mode;
	struct inode *inode;
	struct file *file;
	__u64 dev;

	switch (open_file(task, fd, &file, &inode)) {
	case FOUND:
		break;
	case EMPTY:
		return by_place(task, -1, -1, CRAB_LOST);
	default:
		return lost();
	}
	if (only != ANY) {
		if (BPF_CORE_READ_INTO(&mode, inode, i_mode))
			return lost();
		type = mode & S_IFMT;
		if (type != S_IFREG && !(only == REGULAR_OR_DIRECTORY && type == S_IFDIR))
			return 0;
	}
	if (only == WRITABLE) {
		if (BPF_CORE_READ_INTO(&f_mode, file, f_mode))
			return lost();
		if (!(f_mode & FMODE_WRITE))
			return 0;
	}
	return device_of(inode, &dev) ? lost() : by_device(dev, which);
}

#endif

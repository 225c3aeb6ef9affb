// SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
/*
 * The set that costs nothing per system call: it counts where the kernel sets an
 * inode's time of change, which every change of a file, a directory or their
 * attributes does, whoever makes it: a call by either entry, io_uring, a kernel
 * thread. The tracepoints are there since Linux 6.13.
 *
 * What it leans on:
 *   overlayfs   copies the times from the upper inode onto its own after each
 *               operation that may have changed them, and always. So a change
 *               counts once it is made, on the overlay's own superblock.
 *   tmpfs       sets the time before the change is made, and not again within the
 *               same tick unless somebody has read it meanwhile (multigrain
 *               timestamps). So a reader of the counters must read the times of all
 *               files (stat) after its epoch, as a comparison does anyway; and what
 *               is under way at the epoch it must exclude by other means, as with
 *               the other set: no task running, or a freeze.
 *   mappings    pages that are mapped where a store reaches a file count as unseen;
 *               who holds such a mapping at a boundary is found by looking.
 * It also tells which inodes of an overlay changed (changes.h).
 * Mounts are not counted: there is nothing to count them at. User space asks the
 * mount namespace itself.
 */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "attended.h"
#include "changes.h"
#include "network.h"
#include "processes.h"

/* As in syscalls.bpf.c. */
char LICENSE[] SEC("license") = "GPL";

#define OVERLAYFS_SUPER_MAGIC 0x794c7630

/* include/linux/mm_types_task.h: resident pages of shared memory, tmpfs included. */
#define MM_SHMEMPAGES 3

static __always_inline int touched(struct inode *inode)
{
	struct super_block *sb = inode->i_sb;
	__u64 dev = sb->s_dev;
	struct crab_counters *counters = bpf_map_lookup_elem(&devices, &dev);

	if (!counters) {
		/* An overlay's file is mapped from below it, and a hole is punched there
		 * through the mapping (MADV_REMOVE). */
		if (inode->i_mapping->i_mmap_writable.counter > 0)
			by_cgroup(CRAB_UNSEEN);
		return 0;
	}
	/* One that no name leads to yet is only being read in: what makes a file
	 * changes its directory too. */
	if (sb->s_magic == OVERLAYFS_SUPER_MAGIC) {
		if (!inode->i_dentry.first)
			return 0;
		log_change(dev, inode);
	}
	crab_add(counters, CRAB_FILES);
	return 0;
}

SEC("tp_btf/ctime_ns_xchg")
int ctime_ns_xchg(unsigned long long *ctx)
{
	return touched((struct inode *)ctx[0]);
}

/* The same time again: what is changed is changed all the same. */
SEC("tp_btf/ctime_xchg_skip")
int ctime_xchg_skip(unsigned long long *ctx)
{
	return touched((struct inode *)ctx[0]);
}

SEC("tp_btf/inode_set_ctime_to_ts")
int inode_set_ctime_to_ts(unsigned long long *ctx)
{
	return touched((struct inode *)ctx[0]);
}

/* A page of a file that somebody may store to through a mapping is being mapped. */
static __always_inline int mapped(struct address_space *mapping)
{
	if (mapping->i_mmap_writable.counter <= 0)
		return 0;
	by_cgroup(CRAB_UNSEEN);
	return 0;
}

SEC("tp_btf/mm_filemap_fault")
int mm_filemap_fault(unsigned long long *ctx)
{
	return mapped((struct address_space *)ctx[0]);
}

/* Several pages at once, for reading: a later store does not fault them in again. */
SEC("tp_btf/mm_filemap_map_pages")
int mm_filemap_map_pages(unsigned long long *ctx)
{
	return mapped((struct address_space *)ctx[0]);
}

/* tmpfs maps its pages with no event of its own: of a hole that is loaded from and then
 * stored to, this is all there is. Anonymous shared memory is counted with it, but not
 * the program's own pages where that is in memory and immutable: crabd's copy of runc,
 * which passes through a sandbox's cgroup with each exec. Making one takes a capability
 * that containers do not have. */
SEC("tp_btf/rss_stat")
int rss_stat(unsigned long long *ctx)
{
	struct mm_struct *mm = (struct mm_struct *)ctx[0];
	struct file *program;

	if ((int)ctx[1] != MM_SHMEMPAGES)
		return 0;
	program = mm->exe_file;
	if (program && program->f_inode->i_flags & S_IMMUTABLE)
		return 0;
	by_cgroup(CRAB_UNSEEN);
	return 0;
}

/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * Which inodes of an overlay's upper directory change: a log for each superblock for
 * which user space has made one. Its other side is src/changes.rs, which checks the size.
 *
 * It is read without a lock, while it is written: `begun` and `ended` are equal where
 * nobody writes. An entry is in the log before the counter of the same change moves, so
 * whoever reads the counter first finds in the log all that the counter tells of.
 */
#ifndef CRAB_CHANGES_H
#define CRAB_CHANGES_H

#include "effects.h"
#include "kernel.h"
#include <bpf/bpf_core_read.h>

/* A power of two. Whoever asks after more changes than these is told that he is late. */
#define CRAB_LOGGED 2048

/* No name leads to the inode any more. */
#define CRAB_NAMELESS (1ULL << 63)

struct crab_changes {
	__u64 made; /* when: tells this log from an earlier one of the same superblock */
	__u64 begun;
	__u64 ended;
	__u64 inodes[CRAB_LOGGED]; /* by number; 0: one that cannot be told */
};
_Static_assert(sizeof(struct crab_changes) == 16408, "layout is shared with changes.rs");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u64);
	__type(value, struct crab_changes);
} changes SEC(".maps");

/* The number of the inode in the upper directory that one of an overlay stands for. Its
 * own number is that of the file in the image that it was copied from. */
static __always_inline __u64 upper_of(struct inode *inode)
{
	struct dentry *upper;
	struct inode *real;
	unsigned long number;
	unsigned int links;

	/* A module's types are not the kernel's. */
	if (!bpf_core_type_exists(struct ovl_inode))
		return 0;
	if (bpf_probe_read_kernel(&upper, sizeof(upper),
				  (void *)inode +
				  (bpf_core_field_offset(struct ovl_inode, __upperdentry) -
				   bpf_core_field_offset(struct ovl_inode, vfs_inode))))
		return 0;
	if (!upper || BPF_CORE_READ_INTO(&real, upper, d_inode) || !real)
		return 0;
	if (BPF_CORE_READ_INTO(&number, real, i_ino) || BPF_CORE_READ_INTO(&links, real, i_nlink))
		return 0;
	if (number & CRAB_NAMELESS)
		return 0;
	return links ? number : number | CRAB_NAMELESS;
}

static __always_inline void log_change(__u64 dev, struct inode *inode)
{
	struct crab_changes *log = bpf_map_lookup_elem(&changes, &dev);
	__u64 place;

	if (!log)
		return;
	place = __sync_fetch_and_add(&log->begun, 1);
	log->inodes[place & (CRAB_LOGGED - 1)] = upper_of(inode);
	/* One whose result is wanted orders what is before it; one without does not, on arm64. */
	place = __sync_fetch_and_add(&log->ended, 1);
	asm volatile("" : : "r"(place));
}

#endif

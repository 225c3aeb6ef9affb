/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * What the programs of every set share with user space: the maps and their values. The
 * other side of each declaration is src/counters.rs and src/pins.rs; both
 * check the sizes.
 *
 *   sandboxes       cgroup id -> counters   what a sandbox's own tasks did
 *   devices         dev_t     -> counters   what anyone did to a superblock
 *   members         cgroup id -> its devices; user space only, kept in a map
 *                   so that it survives the daemon together with the counts
 *   lost_anywhere   0 -> events that could be ascribed to nobody
 *   attention       0 -> until when (CLOCK_MONOTONIC, ns) CRAB_CALLS is counted
 *   spared          cgroup id -> whose calls are not in CRAB_CALLS
 *   patches         how often the kernel began, and ended, to patch programs in or out
 *
 * Counters only ever grow. A sandbox's effects are the sum of its own and of
 * its devices' counters, made in user space: so a superblock that several
 * sandboxes share needs no list of owners in the kernel.
 */
#ifndef CRAB_EFFECTS_H
#define CRAB_EFFECTS_H

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

enum crab_counter {
	CRAB_FILES,
	CRAB_PROCESSES,
	CRAB_MOUNTS,
	CRAB_UNSEEN,
	CRAB_LOST,
	CRAB_CALLS, /* calls completed while there was attention, the spared's left out */
	CRAB_CONNECTED,
	CRAB_LISTENED,
	CRAB_SENT, /* bytes */
};

/* A power of two, so that masking an index is proof enough for the verifier. */
#define CRAB_COUNTERS 16

struct crab_counters {
	__u64 n[CRAB_COUNTERS];
};
_Static_assert(sizeof(struct crab_counters) == 128, "layout is shared with counters.rs");

#define CRAB_MAX_DEVICES 32

struct crab_member {
	struct crab_counters base; /* of devices that it no longer has */
	__u64 period;              /* differs for each watch of the same cgroup */
	__u64 devices[CRAB_MAX_DEVICES]; /* 0 ends the list: no superblock has dev_t 0 */
};
_Static_assert(sizeof(struct crab_member) == 392, "layout is shared with counters.rs");

/* Preallocated: the elements are found from tracing programs, where older
 * kernels do not take maps that allocate. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__type(key, __u64);
	__type(value, struct crab_counters);
} sandboxes SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 16384);
	__type(key, __u64);
	__type(value, struct crab_counters);
} devices SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u64);
	__type(value, struct crab_member);
} members SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} lost_anywhere SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} attention SEC(".maps");

#define CRAB_MAX_SPARED 3

/* Processes by the innermost pid namespace that they are in: a tracer in a pid
 * namespace of its own knows them by no other number. */
struct crab_spared {
	__u32 pid_namespace; /* its inode number */
	__u32 pids[CRAB_MAX_SPARED]; /* 0 is nobody */
};
_Static_assert(sizeof(struct crab_spared) == 16, "layout is shared with counters.rs");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__type(key, __u64);
	__type(value, struct crab_spared);
} spared SEC(".maps");

enum crab_patch {
	CRAB_PATCH_BEGUN,
	CRAB_PATCH_ENDED,
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 2);
	__type(key, __u32);
	__type(value, __u64);
} patches SEC(".maps");

static __always_inline void crab_add_many(struct crab_counters *counters, __u32 which, __u64 count)
{
	__sync_fetch_and_add(&counters->n[which & (CRAB_COUNTERS - 1)], count);
}

static __always_inline void crab_add(struct crab_counters *counters, __u32 which)
{
	crab_add_many(counters, which, 1);
}

#endif

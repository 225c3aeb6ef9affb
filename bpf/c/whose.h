/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * For whom an event counts that has no file: the watched cgroups that the current
 * task is in.
 */
#ifndef CRAB_WHOSE_H
#define CRAB_WHOSE_H

#include <bpf/bpf_core_read.h>

#include "effects.h"
#include "kernel.h"

/* Levels of the cgroup tree, from below its root, at which a sandbox is found.
 * Counted from the top, so that a sandbox cannot hide by nesting deeper. */
#define MAX_LEVEL 32

/* Whether the current task is of a process that this sandbox's user spares. */
static __noinline int is_spared(__u64 cgroup)
{
	struct crab_spared *who = bpf_map_lookup_elem(&spared, &cgroup);
	struct pid *pid = bpf_get_current_task_btf()->group_leader->thread_pid;
	struct pid_namespace *ns;
	unsigned int level, inum;
	struct upid *number;
	int nr;

	if (!who || !pid)
		return 0;
	if (BPF_CORE_READ_INTO(&level, pid, level))
		return 0;
	number = (void *)pid + bpf_core_field_offset(struct pid, numbers) +
		 level * bpf_core_type_size(struct upid);
	if (BPF_CORE_READ_INTO(&nr, number, nr) || BPF_CORE_READ_INTO(&ns, number, ns) ||
	    BPF_CORE_READ_INTO(&inum, ns, ns.inum))
		return 0;
	if (inum != who->pid_namespace)
		return 0;
	for (int i = 0; i < CRAB_MAX_SPARED; i++)
		if (who->pids[i] && who->pids[i] == nr)
			return 1;
	return 0;
}

/* Counts for every watched cgroup that the current task is in: its own and its
 * ancestors (a sandbox may run in a sandbox); calls but those of the spared. */
static __noinline int by_cgroup_many(__u32 which, __u64 count)
{
	struct crab_counters *counters;
	int hit = 0;

	for (int level = 1; level <= MAX_LEVEL; level++) {
		__u64 id = bpf_get_current_ancestor_cgroup_id(level);

		if (!id)
			break;
		counters = bpf_map_lookup_elem(&sandboxes, &id);
		if (counters && (which != CRAB_CALLS || !is_spared(id))) {
			crab_add_many(counters, which, count);
			hit = 1;
		}
	}
	return hit;
}

static __always_inline int by_cgroup(__u32 which)
{
	return by_cgroup_many(which, 1);
}

#endif

/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * Tasks that came, became others, and went: the same in every set of programs.
 */
#ifndef CRAB_PROCESSES_H
#define CRAB_PROCESSES_H

#include "whose.h"

/* A new task is in its parent's cgroup, but for CLONE_INTO_CGROUP: a runtime's
 * way in, which an exec follows. */
SEC("tp_btf/sched_process_fork")
int sched_process_fork(unsigned long long *ctx)
{
	by_cgroup(CRAB_PROCESSES);
	return 0;
}

SEC("tp_btf/sched_process_exec")
int sched_process_exec(unsigned long long *ctx)
{
	by_cgroup(CRAB_PROCESSES);
	return 0;
}

/* Signals whose default action dumps core (kernel/signal.c, SIG_KERNEL_COREDUMP_MASK). */
#define CORE_SIGNALS                                                                   \
	(1u << 3 | 1u << 4 | 1u << 5 | 1u << 6 | 1u << 7 | 1u << 8 | 1u << 11 | 1u << 24 | \
	 1u << 25 | 1u << 31)

SEC("tp_btf/sched_process_exit")
int sched_process_exit(unsigned long long *ctx)
{
	struct task_struct *task = bpf_get_current_task_btf();
	int code = task->signal->group_exit_code;

	by_cgroup(CRAB_PROCESSES);
	/* A core file is written into the working directory by no system call. */
	if (CORE_SIGNALS >> (code & 31) & 1 && !(code & 0x60))
		by_cgroup(CRAB_FILES);
	return 0;
}

#endif

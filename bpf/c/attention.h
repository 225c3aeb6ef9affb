/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * Whether anything goes on in a sandbox, for as long as somebody wants to know.
 */
#ifndef CRAB_ATTENTION_H
#define CRAB_ATTENTION_H

#include <linux/errno.h>

#include "whose.h"

/* The call goes on after the interruption: nothing of it has reached user space. */
static __always_inline int restarts(long ret)
{
	return -ret >= ERESTARTSYS && -ret <= ERESTART_RESTARTBLOCK;
}

/* Whether anything goes on in a sandbox: a task that only wakes, and blocks again in its
 * interrupted call, completes none. What a freezer or a tracer interrupts returns one
 * of these codes, and goes on with the call, or (epoll_wait) makes the next; but a signal
 * handler's return has no number. Not told are a handler that leaves by a long jump, and
 * what a program does between an EINTR and the same call again. */
static __noinline int attend(__u64 until, __u64 nr, long ret)
{
	if (bpf_ktime_get_ns() > until)
		return 0;
	if ((ret == -EINTR || restarts(ret)) && (int)nr != -1)
		return 0;
	return by_cgroup(CRAB_CALLS);
}

static __always_inline void attention_at(__u64 nr, long ret)
{
	__u32 zero = 0;
	__u64 *until = bpf_map_lookup_elem(&attention, &zero);

	if (until && *until)
		attend(*until, nr, ret);
}

#endif

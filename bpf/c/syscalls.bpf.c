// SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
/*
 * The set that every kernel with BTF takes: it judges each system call of the
 * host when it ends.
 */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "judge.h"
#include "network.h"
#include "processes.h"

/* One of the strings that the kernel takes for GPL-compatible, which reading
 * its memory needs; the SPDX line above is the licence of the source. */
char LICENSE[] SEC("license") = "GPL";

SEC("tp_btf/sys_exit")
int sys_exit(unsigned long long *ctx)
{
	int is_compat = bpf_get_current_task_btf()->thread_info.status & TS_COMPAT;
	struct pt_regs *regs = (struct pt_regs *)ctx[0];
	__u64 nr = regs->orig_ax;
	const struct rule *rule;

	attention_at(nr, ctx[1]);

	/* The cheap way out of nearly every call on the host: two loads. */
	if (is_compat) {
		if (nr >= COMPAT_CALLS)
			return 0;
		rule = &compat[nr];
	} else {
		nr &= ~(__u64)X32_BIT;
		if (nr >= NATIVE_CALLS)
			return 0;
		rule = &native[nr];
	}
	if (rule->kind == NONE)
		return 0;

	return judge(regs, is_compat, *rule, ctx[1]);
}

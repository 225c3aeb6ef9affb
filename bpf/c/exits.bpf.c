// SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
/*
 * The set for kernels that let their text be patched: a program at the end of each
 * system call that can change something, by the same rules as the set that looks at
 * all calls. The others cost nothing.
 *
 * 64-bit calls have a function each, which nothing but the entry calls (and x32's, where
 * the two share one). The 32-bit entry and x32 have a function that leads to all of theirs:
 * who comes by these is rare.
 *
 * What it leans on: a function that is entered behind a trampoline leaves through it,
 * so through our program; unless the kernel has patched the program out of that
 * trampoline meanwhile, as it does when anybody attaches or detaches another program
 * at the same function. It does so in one place, which is counted: user space takes it
 * for another period of counting. As for what is under way when the set is loaded.
 */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "attended.h"
#include "judge.h"
#include "network.h"
#include "processes.h"

/* As in syscalls.bpf.c. */
char LICENSE[] SEC("license") = "GPL";

/* The kernel takes no program at a function's end that returns anything but 0. */
#define EXIT(number, function, kind, arg)                                       \
	SEC("fexit/__x64_sys_" #function)                                       \
	int __x64_sys_##function(unsigned long long *ctx)                       \
	{                                                                       \
		const struct rule rule = { kind, arg };                         \
                                                                                \
		judge((struct pt_regs *)ctx[0], 0, rule, ctx[1]);               \
		return 0;                                                       \
	}

NATIVE_RULES(EXIT)

SEC("fexit/ia32_sys_call")
int ia32_sys_call(unsigned long long *ctx)
{
	struct pt_regs *regs = (struct pt_regs *)ctx[0];
	__u64 nr = regs->orig_ax;

	if (nr < COMPAT_CALLS && compat[nr].kind != NONE)
		judge(regs, 1, compat[nr], ctx[2]);
	return 0;
}

/* Those that x32 shares with the 64-bit entry are counted at their functions. */
SEC("fexit/x32_sys_call")
int x32_sys_call(unsigned long long *ctx)
{
	struct pt_regs *regs = (struct pt_regs *)ctx[0];
	__u64 nr = regs->orig_ax & ~(__u64)X32_BIT;

	if (nr >= X32_CALLS && nr < NATIVE_CALLS && native[nr].kind != NONE)
		judge(regs, 0, native[nr], ctx[2]);
	return 0;
}

static __always_inline void count_patch(__u32 which)
{
	__u64 *count = bpf_map_lookup_elem(&patches, &which);

	if (count)
		__sync_fetch_and_add(count, 1);
}

SEC("fentry/bpf_arch_text_poke")
int patch_begins(unsigned long long *ctx)
{
	count_patch(CRAB_PATCH_BEGUN);
	return 0;
}

SEC("fexit/bpf_arch_text_poke")
int patch_ends(unsigned long long *ctx)
{
	count_patch(CRAB_PATCH_ENDED);
	return 0;
}

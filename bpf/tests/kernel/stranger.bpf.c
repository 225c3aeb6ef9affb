// SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
/* Somebody else's program at a function that ours sit at, too. */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

char LICENSE[] SEC("license") = "GPL";

SEC("fexit/__x64_sys_splice")
int stranger(unsigned long long *ctx)
{
	return 0;
}

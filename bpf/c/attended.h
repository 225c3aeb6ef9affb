/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * For sets that do not sit on every system call: the program that counts completed
 * ones, attached only while there is attention.
 */
#ifndef CRAB_ATTENDED_H
#define CRAB_ATTENDED_H

#include "attention.h"

SEC("tp_btf/sys_exit")
int sys_exit(unsigned long long *ctx)
{
	struct pt_regs *regs = (struct pt_regs *)ctx[0];

	attention_at(regs->orig_ax, ctx[1]);
	return 0;
}

#endif

/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * The few kernel structures that the programs look into, reduced to the fields
 * they read. preserve_access_index makes the loader relocate every access
 * against the running kernel's own BTF (CO-RE), so neither the order nor the
 * completeness of the fields matters here, only names and types.
 */
#ifndef CRAB_KERNEL_H
#define CRAB_KERNEL_H

#include <linux/types.h>

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct super_block {
	__u32 s_dev; /* dev_t: major << 20 | minor */
	unsigned long s_magic;
};

struct hlist_node;

struct hlist_head {
	struct hlist_node *first;
};

struct address_space {
	struct {
		int counter;
	} i_mmap_writable; /* shared mappings through which it may be stored to */
};

struct inode {
	unsigned short i_mode;
	unsigned int i_flags;
	unsigned long i_ino;
	unsigned int i_nlink;
	struct super_block *i_sb;
	struct address_space *i_mapping;
	struct hlist_head i_dentry; /* the names that lead to it */
};

struct sock_common {
	unsigned short skc_family;
	__u32 skc_rcv_saddr;
};

struct sock {
	struct sock_common __sk_common;
};

struct file {
	unsigned int f_mode;
	struct inode *f_inode;
};

struct mm_struct {
	struct file *exe_file;
};

struct fdtable {
	unsigned int max_fds;
	struct file **fd;
};

struct files_struct {
	struct fdtable *fdt;
};

struct dentry {
	struct super_block *d_sb;
	struct inode *d_inode;
};

struct ovl_inode {
	struct inode vfs_inode;
	struct dentry *__upperdentry; /* none where there is only the image's file */
};

struct path {
	struct dentry *dentry;
};

struct fs_struct {
	struct path root;
	struct path pwd;
};

struct signal_struct {
	int group_exit_code;
};

struct ns_common {
	unsigned int inum;
};

struct pid_namespace {
	struct ns_common ns;
};

struct upid {
	int nr;
	struct pid_namespace *ns;
};

struct pid {
	unsigned int level;
	struct upid numbers[1];
};

struct thread_info {
	__u32 status;
};

struct task_struct {
	struct thread_info thread_info;
	struct fs_struct *fs;
	struct files_struct *files;
	struct signal_struct *signal;
	struct task_struct *group_leader;
	struct pid *thread_pid;
};

struct pt_regs {
	unsigned long bp;
	unsigned long bx;
	unsigned long r10;
	unsigned long r9;
	unsigned long r8;
	unsigned long cx;
	unsigned long dx;
	unsigned long si;
	unsigned long di;
	unsigned long orig_ax;
};

#pragma clang attribute pop

/* arch/x86/include/asm/thread_info.h: a 32-bit system call is under way,
 * whether of a 32-bit process or through int 0x80 from a 64-bit one. Cleared
 * only after the sys_exit tracepoint has run. */
#define TS_COMPAT 0x0002

/* include/linux/fs.h: nobody changes the inode. */
#define S_IMMUTABLE (1 << 3)

/* include/linux/fs.h: the open file may be written to. */
#define FMODE_WRITE 0x2

/* Codes that a system call returns to the entry code, never to user space. */
#define ERESTARTSYS 512
#define ERESTART_RESTARTBLOCK 516

#endif

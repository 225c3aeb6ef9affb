/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * Which system calls can change a sandbox, for both ABIs of x86-64, and by
 * which rule each is judged. A call that is not here is out after one load.
 * New system calls get the same number in both tables (from 424 on).
 *
 * Not here, on purpose: tee and vmsplice (they write to pipes only), msync,
 * munmap and MADV_REMOVE (they act through a mapping that already counted as
 * unseen), pidfd_getfd (what is done through the new fd counts).
 */
#ifndef CRAB_RULES_H
#define CRAB_RULES_H

enum kind {
	NONE = 0,
	CONTENT,      /* writes through fd `arg`; a regular file's content; 0 bytes are none */
	SIZE,         /* the same without a byte count: ftruncate, fallocate */
	ATTRIBUTES,   /* changes the inode behind fd `arg`, of whatever type */
	OPEN,         /* opens; flags in `arg` */
	OPEN_HOW,     /* openat2: flags in the user's struct open_how at `arg` */
	CREATE,       /* creat */
	PATH,         /* names its target by path alone */
	PATH_AT,      /* by path from the dirfd `arg` */
	PATH_AT_TWO,  /* by two paths from the dirfds 0 and 2 */
	TIMES_AT,     /* utimensat, futimesat: fd 0 itself where path is NULL */
	BATCH,        /* submits writes that are named elsewhere */
	UNSEEN,       /* sets up something that writes with no further call */
	MAP,          /* mmap, mmap2 */
	MAP_OLD,      /* i386's mmap: arguments in a user's struct */
	MOUNT,
	MOUNT_CLONE,  /* open_tree: with OPEN_TREE_CLONE */
	MOUNT_CONFIG, /* fsconfig: its commands that create or reconfigure */
	CONTROL,      /* ioctl */
	BIND,         /* bind: a unix socket's address makes a socket file */
	SOCKETCALL,   /* i386's multiplexer */
};

struct rule {
	__u8 kind;
	__u8 arg;
};

/* call(number, function of the kernel behind __x64_sys_, kind, arg) */
#define SINCE_424(call)					\
	call(425, io_uring_setup, UNSEEN, 0)		\
	call(426, io_uring_enter, BATCH, 0)		\
	call(428, open_tree, MOUNT_CLONE, 2)		\
	call(429, move_mount, MOUNT, 0)			\
	call(431, fsconfig, MOUNT_CONFIG, 1)		\
	call(432, fsmount, MOUNT, 0)			\
	call(437, openat2, OPEN_HOW, 2)			\
	call(442, mount_setattr, MOUNT, 0)		\
	call(452, fchmodat2, PATH_AT, 0)		\
	call(463, setxattrat, PATH_AT, 0)		\
	call(466, removexattrat, PATH_AT, 0)		\
	call(467, open_tree_attr, MOUNT_CLONE, 2)	\
	call(469, file_setattr, PATH_AT, 0)

/* arch/x86/entry/syscalls/syscall_64.tbl; from 512 on the x32 variants, whose
 * other calls share the 64-bit numbers with bit 30 set. */
#define NATIVE_CALLS 548
#define X32_CALLS 512
#define X32_BIT 0x40000000
#define NATIVE_RULES(call)			\
	call(1, write, CONTENT, 0)		\
	call(2, open, OPEN, 1)			\
	call(9, mmap, MAP, 0)			\
	call(16, ioctl, CONTROL, 0)		\
	call(18, pwrite64, CONTENT, 0)		\
	call(20, writev, CONTENT, 0)		\
	call(40, sendfile64, CONTENT, 0)	\
	call(49, bind, BIND, 1)			\
	call(76, truncate, PATH, 0)		\
	call(77, ftruncate, SIZE, 0)		\
	call(82, rename, PATH, 0)		\
	call(83, mkdir, PATH, 0)		\
	call(84, rmdir, PATH, 0)		\
	call(85, creat, CREATE, 0)		\
	call(86, link, PATH, 0)			\
	call(87, unlink, PATH, 0)		\
	call(88, symlink, PATH, 0)		\
	call(90, chmod, PATH, 0)		\
	call(91, fchmod, ATTRIBUTES, 0)		\
	call(92, chown, PATH, 0)		\
	call(93, fchown, ATTRIBUTES, 0)		\
	call(94, lchown, PATH, 0)		\
	call(132, utime, PATH, 0)		\
	call(133, mknod, PATH, 0)		\
	call(155, pivot_root, MOUNT, 0)		\
	call(163, acct, UNSEEN, 0)		\
	call(165, mount, MOUNT, 0)		\
	call(166, umount, MOUNT, 0)		\
	call(167, swapon, UNSEEN, 0)		\
	call(188, setxattr, PATH, 0)		\
	call(189, lsetxattr, PATH, 0)		\
	call(190, fsetxattr, ATTRIBUTES, 0)	\
	call(197, removexattr, PATH, 0)		\
	call(198, lremovexattr, PATH, 0)	\
	call(199, fremovexattr, ATTRIBUTES, 0)	\
	call(206, io_setup, UNSEEN, 0)		\
	call(209, io_submit, BATCH, 0)		\
	call(235, utimes, PATH, 0)		\
	call(257, openat, OPEN, 2)		\
	call(258, mkdirat, PATH_AT, 0)		\
	call(259, mknodat, PATH_AT, 0)		\
	call(260, fchownat, PATH_AT, 0)		\
	call(261, futimesat, TIMES_AT, 0)	\
	call(263, unlinkat, PATH_AT, 0)		\
	call(264, renameat, PATH_AT_TWO, 0)	\
	call(265, linkat, PATH_AT_TWO, 0)	\
	call(266, symlinkat, PATH_AT, 1)	\
	call(268, fchmodat, PATH_AT, 0)		\
	call(275, splice, CONTENT, 2)		\
	call(280, utimensat, TIMES_AT, 0)	\
	call(285, fallocate, SIZE, 0)		\
	call(296, pwritev, CONTENT, 0)		\
	call(304, open_by_handle_at, OPEN, 2)	\
	call(316, renameat2, PATH_AT_TWO, 0)	\
	call(326, copy_file_range, CONTENT, 2)	\
	call(328, pwritev2, CONTENT, 0)		\
	SINCE_424(call)

#define RULE(number, function, kind, arg) [number] = { kind, arg },

static const struct rule native[NATIVE_CALLS] = {
	NATIVE_RULES(RULE)
	[/* x32 ioctl */ 514] = { CONTROL, 0 },
	[/* x32 writev */ 516] = { CONTENT, 0 },
	[/* x32 pwritev */ 535] = { CONTENT, 0 },
	[/* x32 io_setup */ 543] = { UNSEEN, 0 },
	[/* x32 io_submit */ 544] = { BATCH, 0 },
	[/* x32 pwritev2 */ 547] = { CONTENT, 0 },
};

/* arch/x86/entry/syscalls/syscall_32.tbl */
#define COMPAT_CALLS 470
static const struct rule compat[COMPAT_CALLS] = {
	[/* write */ 4] = { CONTENT, 0 },
	[/* open */ 5] = { OPEN, 1 },
	[/* creat */ 8] = { CREATE, 0 },
	[/* link */ 9] = { PATH, 0 },
	[/* unlink */ 10] = { PATH, 0 },
	[/* mknod */ 14] = { PATH, 0 },
	[/* chmod */ 15] = { PATH, 0 },
	[/* lchown */ 16] = { PATH, 0 },
	[/* mount */ 21] = { MOUNT, 0 },
	[/* umount */ 22] = { MOUNT, 0 },
	[/* utime */ 30] = { PATH, 0 },
	[/* rename */ 38] = { PATH, 0 },
	[/* mkdir */ 39] = { PATH, 0 },
	[/* rmdir */ 40] = { PATH, 0 },
	[/* acct */ 51] = { UNSEEN, 0 },
	[/* umount2 */ 52] = { MOUNT, 0 },
	[/* ioctl */ 54] = { CONTROL, 0 },
	[/* symlink */ 83] = { PATH, 0 },
	[/* swapon */ 87] = { UNSEEN, 0 },
	[/* mmap */ 90] = { MAP_OLD, 0 },
	[/* truncate */ 92] = { PATH, 0 },
	[/* ftruncate */ 93] = { SIZE, 0 },
	[/* fchmod */ 94] = { ATTRIBUTES, 0 },
	[/* fchown */ 95] = { ATTRIBUTES, 0 },
	[/* socketcall */ 102] = { SOCKETCALL, 0 },
	[/* writev */ 146] = { CONTENT, 0 },
	[/* pwrite64 */ 181] = { CONTENT, 0 },
	[/* chown */ 182] = { PATH, 0 },
	[/* sendfile */ 187] = { CONTENT, 0 },
	[/* mmap2 */ 192] = { MAP, 0 },
	[/* truncate64 */ 193] = { PATH, 0 },
	[/* ftruncate64 */ 194] = { SIZE, 0 },
	[/* lchown32 */ 198] = { PATH, 0 },
	[/* fchown32 */ 207] = { ATTRIBUTES, 0 },
	[/* chown32 */ 212] = { PATH, 0 },
	[/* pivot_root */ 217] = { MOUNT, 0 },
	[/* setxattr */ 226] = { PATH, 0 },
	[/* lsetxattr */ 227] = { PATH, 0 },
	[/* fsetxattr */ 228] = { ATTRIBUTES, 0 },
	[/* removexattr */ 235] = { PATH, 0 },
	[/* lremovexattr */ 236] = { PATH, 0 },
	[/* fremovexattr */ 237] = { ATTRIBUTES, 0 },
	[/* sendfile64 */ 239] = { CONTENT, 0 },
	[/* io_setup */ 245] = { UNSEEN, 0 },
	[/* io_submit */ 248] = { BATCH, 0 },
	[/* utimes */ 271] = { PATH, 0 },
	[/* openat */ 295] = { OPEN, 2 },
	[/* mkdirat */ 296] = { PATH_AT, 0 },
	[/* mknodat */ 297] = { PATH_AT, 0 },
	[/* fchownat */ 298] = { PATH_AT, 0 },
	[/* futimesat */ 299] = { TIMES_AT, 0 },
	[/* unlinkat */ 301] = { PATH_AT, 0 },
	[/* renameat */ 302] = { PATH_AT_TWO, 0 },
	[/* linkat */ 303] = { PATH_AT_TWO, 0 },
	[/* symlinkat */ 304] = { PATH_AT, 1 },
	[/* fchmodat */ 306] = { PATH_AT, 0 },
	[/* splice */ 313] = { CONTENT, 2 },
	[/* utimensat */ 320] = { TIMES_AT, 0 },
	[/* fallocate */ 324] = { SIZE, 0 },
	[/* pwritev */ 334] = { CONTENT, 0 },
	[/* open_by_handle_at */ 342] = { OPEN, 2 },
	[/* renameat2 */ 353] = { PATH_AT_TWO, 0 },
	[/* bind */ 361] = { BIND, 1 },
	[/* copy_file_range */ 377] = { CONTENT, 2 },
	[/* pwritev2 */ 379] = { CONTENT, 0 },
	[/* utimensat_time64 */ 412] = { TIMES_AT, 0 },
	SINCE_424(RULE)
};

#endif

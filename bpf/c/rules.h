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

#define SINCE_424                                              \
	[/* io_uring_setup */ 425] = { UNSEEN, 0 },            \
	[/* io_uring_enter */ 426] = { BATCH, 0 },             \
	[/* open_tree */ 428] = { MOUNT_CLONE, 2 },            \
	[/* move_mount */ 429] = { MOUNT, 0 },                 \
	[/* fsconfig */ 431] = { MOUNT_CONFIG, 1 },            \
	[/* fsmount */ 432] = { MOUNT, 0 },                    \
	[/* openat2 */ 437] = { OPEN_HOW, 2 },                 \
	[/* mount_setattr */ 442] = { MOUNT, 0 },              \
	[/* fchmodat2 */ 452] = { PATH_AT, 0 },                \
	[/* setxattrat */ 463] = { PATH_AT, 0 },               \
	[/* removexattrat */ 466] = { PATH_AT, 0 },            \
	[/* open_tree_attr */ 467] = { MOUNT_CLONE, 2 },       \
	[/* file_setattr */ 469] = { PATH_AT, 0 }

/* arch/x86/entry/syscalls/syscall_64.tbl; from 512 on the x32 variants, whose
 * other calls share the 64-bit numbers with bit 30 set. */
#define NATIVE_CALLS 548
#define X32_BIT 0x40000000
static const struct rule native[NATIVE_CALLS] = {
	[/* write */ 1] = { CONTENT, 0 },
	[/* open */ 2] = { OPEN, 1 },
	[/* mmap */ 9] = { MAP, 0 },
	[/* ioctl */ 16] = { CONTROL, 0 },
	[/* pwrite64 */ 18] = { CONTENT, 0 },
	[/* writev */ 20] = { CONTENT, 0 },
	[/* sendfile */ 40] = { CONTENT, 0 },
	[/* bind */ 49] = { BIND, 1 },
	[/* truncate */ 76] = { PATH, 0 },
	[/* ftruncate */ 77] = { SIZE, 0 },
	[/* rename */ 82] = { PATH, 0 },
	[/* mkdir */ 83] = { PATH, 0 },
	[/* rmdir */ 84] = { PATH, 0 },
	[/* creat */ 85] = { CREATE, 0 },
	[/* link */ 86] = { PATH, 0 },
	[/* unlink */ 87] = { PATH, 0 },
	[/* symlink */ 88] = { PATH, 0 },
	[/* chmod */ 90] = { PATH, 0 },
	[/* fchmod */ 91] = { ATTRIBUTES, 0 },
	[/* chown */ 92] = { PATH, 0 },
	[/* fchown */ 93] = { ATTRIBUTES, 0 },
	[/* lchown */ 94] = { PATH, 0 },
	[/* utime */ 132] = { PATH, 0 },
	[/* mknod */ 133] = { PATH, 0 },
	[/* pivot_root */ 155] = { MOUNT, 0 },
	[/* acct */ 163] = { UNSEEN, 0 },
	[/* mount */ 165] = { MOUNT, 0 },
	[/* umount2 */ 166] = { MOUNT, 0 },
	[/* swapon */ 167] = { UNSEEN, 0 },
	[/* setxattr */ 188] = { PATH, 0 },
	[/* lsetxattr */ 189] = { PATH, 0 },
	[/* fsetxattr */ 190] = { ATTRIBUTES, 0 },
	[/* removexattr */ 197] = { PATH, 0 },
	[/* lremovexattr */ 198] = { PATH, 0 },
	[/* fremovexattr */ 199] = { ATTRIBUTES, 0 },
	[/* io_setup */ 206] = { UNSEEN, 0 },
	[/* io_submit */ 209] = { BATCH, 0 },
	[/* utimes */ 235] = { PATH, 0 },
	[/* openat */ 257] = { OPEN, 2 },
	[/* mkdirat */ 258] = { PATH_AT, 0 },
	[/* mknodat */ 259] = { PATH_AT, 0 },
	[/* fchownat */ 260] = { PATH_AT, 0 },
	[/* futimesat */ 261] = { TIMES_AT, 0 },
	[/* unlinkat */ 263] = { PATH_AT, 0 },
	[/* renameat */ 264] = { PATH_AT_TWO, 0 },
	[/* linkat */ 265] = { PATH_AT_TWO, 0 },
	[/* symlinkat */ 266] = { PATH_AT, 1 },
	[/* fchmodat */ 268] = { PATH_AT, 0 },
	[/* splice */ 275] = { CONTENT, 2 },
	[/* utimensat */ 280] = { TIMES_AT, 0 },
	[/* fallocate */ 285] = { SIZE, 0 },
	[/* pwritev */ 296] = { CONTENT, 0 },
	[/* open_by_handle_at */ 304] = { OPEN, 2 },
	[/* renameat2 */ 316] = { PATH_AT_TWO, 0 },
	[/* copy_file_range */ 326] = { CONTENT, 2 },
	[/* pwritev2 */ 328] = { CONTENT, 0 },
	SINCE_424,
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
	SINCE_424,
};

#endif

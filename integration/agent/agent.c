/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What acts in a sandbox: a turn's operations, in order.
 *
 *   agent OPERATION WORD... , OPERATION WORD... | OPERATION ...
 *
 * A comma ends an operation. What a bar divides goes on at the same time, each part in a
 * process of its own. An operation that fails (there is no such file) is no error: whoever
 * starts this looks at what came of it. With `-v' first, the results are printed.
 */
#include "server.h"

/* children COUNT: they come and go. */
static long op_children(char **a)
{
	for (long n = number(a[0]); n > 0; n--)
		if (!fork())
			quit(0);
	while (sys4(__NR_wait4, -1, 0, 0, 0) > 0)
		;
	return 0;
}

/* rest MICROSECONDS */
static long op_rest(char **a)
{
	rest(number(a[0]));
	return 0;
}

/* meet WHO COUNT: waits until all of COUNT execs are here, so that they are one turn. */
static long op_meet(char **a)
{
	long who = number(a[0]), all = number(a[1]);
	char name[32], *end = put_text(name, "meet");
	long server;

	put_number(end, who);
	server = listening(name);
	for (long other = 0; other < all; other++) {
		put_number(end, other);
		while (other != who && connected(name) < 0)
			rest(500);
	}
	/* Not before each of them has been here. */
	for (long other = 1; other < all; other++)
		sys3(__NR_accept, server, 0, 0);
	return sys1(__NR_close, server);
}

static long milliseconds(void)
{
	long now[2];

	sys2(__NR_clock_gettime, 1, now);
	return now[0] * 1000 + now[1] / 1000000;
}

/* storm PATH MILLISECONDS: changes a file as fast as calls go. How many there were is what
 * is in it then. */
static long op_storm(char **a)
{
	long fd = open_at(a[0], O_RDWR | O_CREAT | O_TRUNC), calls = 0;
	long until = milliseconds() + number(a[1]);
	char text[24];

	while (milliseconds() < until)
		for (int n = 0; n < 1000; n++, calls += 2) {
			sys4(__NR_pwrite64, fd, "storm", 5, 0);
			sys2(__NR_ftruncate, fd, 5);
		}
	sys4(__NR_pwrite64, fd, text, put_number(text, calls) - text, 0);
	sys1(__NR_close, fd);
	return calls;
}

/* work DIRECTORY MILLISECONDS: writes a file, runs a child and rests, again and again. */
static long op_work(char **a)
{
	long until = milliseconds() + number(a[1]), seed = 0;
	char path[128];
	char *file[] = { path, 0, "2000" }, digits[24];

	sys3(__NR_mkdirat, AT_FDCWD, a[0], 0755);
	while (milliseconds() < until) {
		put_number(put_text(put_text(path, a[0]), "/"), ++seed % 50);
		put_number(digits, seed);
		file[1] = digits;
		op_write(file);
		if (!fork())
			quit(0);
		sys4(__NR_wait4, -1, 0, 0, 0);
		rest(5000);
	}
	return seed;
}

static long op_nothing(char **a)
{
	(void)a;
	return 0;
}

static const struct { const char *name; long words; long (*act)(char **); } operations[] = {
	{ "nothing", 0, op_nothing },
	{ "write", 3, op_write },
	{ "append", 3, op_append },
	{ "overwrite", 4, op_overwrite },
	{ "touched", 1, op_touched },
	{ "truncate", 2, op_truncate },
	{ "ftruncate", 2, op_ftruncate },
	{ "fallocate", 4, op_fallocate },
	{ "copyrange", 3, op_copyrange },
	{ "sendfile", 3, op_sendfile },
	{ "splice", 3, op_splice },
	{ "unnamed", 4, op_unnamed },
	{ "rename", 3, op_rename },
	{ "unlink", 1, op_unlink },
	{ "rmdir", 1, op_rmdir },
	{ "mkdir", 1, op_mkdir },
	{ "link", 2, op_link },
	{ "symlink", 2, op_symlink },
	{ "mknod", 3, op_mknod },
	{ "socket", 1, op_socket },
	{ "chmod", 2, op_chmod },
	{ "fchmodat2", 2, op_fchmodat2 },
	{ "chown", 3, op_chown },
	{ "times", 3, op_times },
	{ "setxattr", 3, op_setxattr },
	{ "removexattr", 2, op_removexattr },
	{ "acl", 2, op_acl },
	{ "restored", 1, op_restored },
	{ "look", 1, op_look },
	{ "map", 3, op_map },
	{ "private", 3, op_private },
	{ "uring", 3, op_uring },
	{ "aio", 3, op_aio },
	{ "write32", 3, op_write32 },
	{ "unlink32", 1, op_unlink32 },
	{ "chmod32", 2, op_chmod32 },
	{ "memfd", 2, op_memfd },
	{ "shm", 2, op_shm },
	{ "spawn", 3, op_spawn },
	{ "tell", 2, op_tell },
	{ "kill", 1, op_kill },
	{ "children", 1, op_children },
	{ "rest", 1, op_rest },
	{ "storm", 2, op_storm },
	{ "work", 2, op_work },
	{ "meet", 2, op_meet },
};

static int verbose;

static void say(const char *name, long result)
{
	char line[64], *end = put_text(line, name);

	end = put_text(end, result < 0 ? " -" : " ");
	end = put_number(end, result < 0 ? -result : result);
	put_text(end, "\n");
	write_all(1, line, length(line));
}

/* An operation that does not exist is an error of whoever started this. */
static void act(char **words, long n)
{
	for (unsigned long i = 0; i < sizeof(operations) / sizeof(*operations); i++) {
		if (!same(words[0], operations[i].name))
			continue;
		if (operations[i].words != n - 1)
			quit(3);
		long result = operations[i].act(words + 1);

		if (verbose)
			say(words[0], result);
		return;
	}
	quit(2);
}

static void in_order(char **words)
{
	while (*words) {
		long n = 0;

		while (words[n] && !same(words[n], ","))
			n++;
		act(words, n);
		words += words[n] ? n + 1 : n;
	}
}

static void at_once(char **words)
{
	int status = 0, worst = 0;

	for (char **part = words;; words++) {
		if (*words && !same(*words, "|"))
			continue;
		int last = !*words;

		*words = 0;
		if (last && part == words)
			break;
		if (!fork()) {
			in_order(part);
			quit(0);
		}
		if (last)
			break;
		part = words + 1;
	}
	while (sys4(__NR_wait4, -1, &status, 0, 0) > 0)
		worst |= status;
	quit(worst >> 8 | (worst & 127 ? 128 : 0));
}

__attribute__((used)) static void begin(long *stack)
{
	char **words = (char **)(stack + 2);
	int parts = 0;

	if (*words && same(*words, "serve"))
		serve(words + 1);
	if (*words && same(*words, "-v")) {
		verbose = 1;
		words++;
	}
	for (char **word = words; *word; word++)
		parts |= same(*word, "|");
	if (parts)
		at_once(words);
	in_order(words);
	quit(0);
}

/* The kernel leaves the arguments on the stack. */
__asm__(".globl _start\n_start:\n\tmov %rsp, %rdi\n\tand $-16, %rsp\n\tcall begin\n");

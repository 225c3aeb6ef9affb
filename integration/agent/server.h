/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A process that stays behind: `serve NAME ROLE [FILE]', reached by an abstract socket.
 * It does what it is told, and between that
 *   sits     nothing
 *   wakes    wakes up all the time and leaves everything as it is
 *   ticks    counts in its memory all the time
 *   writes   appends to FILE all the time
 * `all the time' is every three milliseconds. One that has answered is back in the call
 * in which it waits soon: who tells it waits for that.
 */
#ifndef AGENT_SERVER_H
#define AGENT_SERVER_H

#include "odd.h"

#define PERIOD 3

static volatile long count;

struct address { unsigned short family; char name[108]; };

static long address_of(struct address *address, const char *name)
{
	address->family = 1;
	address->name[0] = 0;
	put_text(address->name + 1, name);
	return 3 + length(name);
}

static long connected(const char *name)
{
	struct address address;
	long size = address_of(&address, name), fd = sys3(__NR_socket, 1, 02000001, 0);
	long ret = sys3(__NR_connect, fd, &address, size);

	if (ret < 0) {
		sys1(__NR_close, fd);
		return ret;
	}
	return fd;
}

static long listening(const char *name)
{
	struct address address;
	long size = address_of(&address, name), fd = sys3(__NR_socket, 1, 02000001, 0);

	if (sys3(__NR_bind, fd, &address, size) < 0)
		quit(98);
	sys2(__NR_listen, fd, 16);
	return fd;
}

static long pid_of(long connection)
{
	int who[3] = { 0 }, size = sizeof(who);

	sys5(__NR_getsockopt, connection, 1, 17, who, &size);
	return who[0];
}

/* What /proc/PID/FILE begins with. */
static const char *proc_text(long pid, const char *file)
{
	static char text[256];
	char path[64], *end = put_text(path, "/proc/");
	long fd, n;

	put_text(put_number(end, pid), file);
	fd = open_at(path, 0);
	n = fd < 0 ? 0 : sys3(__NR_read, fd, text, sizeof(text) - 1);
	text[n > 0 ? n : 0] = 0;
	sys1(__NR_close, fd);
	return text;
}

/* The state of a process: nothing if it is gone. */
static char state_of(long pid)
{
	const char *text = proc_text(pid, "/stat");

	while (*text && *text != ')')
		text++;
	return *text ? text[2] : 0;
}

static int begins(const char *text, const char *with)
{
	while (*with && *text == *with)
		text++, with++;
	return !*with;
}

/* Blocked in accept or in poll (which goes on as restart_syscall), or gone. */
static void wait_until_back(long pid)
{
	for (;;) {
		const char *text = proc_text(pid, "/syscall");
		int waits = begins(text, "43 ") || begins(text, "7 ") || begins(text, "219 ");
		char state = state_of(pid);

		/* An init that only holds the container open does not reap what has ended. */
		if (!state || state == 'Z' || (waits && state != 'R'))
			return;
		rest(500);
	}
}

struct server {
	const char *file;
	char *mapped;
	long client, held, memfd;
};

static void obey(struct server *it, const char *word)
{
	long mask = 1 << 11;

	if (same(word, "count")) {
		count++;
	} else if (same(word, "grow")) {
		char *more = (char *)sys6(__NR_mmap, 0, 8192, 3, 0x22, -1, 0);

		*more = ++count;
	} else if (same(word, "hold") && !it->held) {
		it->held = open_at(it->file, O_RDWR | O_CREAT);
		if (it->held > 0) {
			sys2(__NR_ftruncate, it->held, 4096);
			it->mapped = map_file(it->held, 4096, MAP_SHARED);
		}
	} else if (same(word, "store") && it->mapped) {
		++*it->mapped;
	} else if (same(word, "write")) {
		long fd = open_at(it->file, O_WRONLY | O_CREAT | O_APPEND);

		write_all(fd, "told to write\n", 14);
		sys1(__NR_close, fd);
	} else if (same(word, "memfd")) {
		if (!it->memfd)
			it->memfd = sys2(__NR_memfd_create, "server", 0);
		write_all(it->memfd, filled(++count, 100), 100);
	} else if (same(word, "open")) {
		open_at("/dev/null", 0);
	} else if (same(word, "block")) {
		sys4(__NR_rt_sigprocmask, 0, &mask, 0, 8);
	} else if (same(word, "unblock")) {
		sys4(__NR_rt_sigprocmask, 1, &mask, 0, 8);
	} else if (same(word, "umask")) {
		sys1(__NR_umask, sys1(__NR_umask, 0) ^ 055);
	} else if (same(word, "limit")) {
		long limit[2];

		sys4(__NR_prlimit64, 0, 7, 0, limit);
		limit[0]--;
		sys4(__NR_prlimit64, 0, 7, limit, 0);
	} else if (same(word, "nice")) {
		sys3(__NR_setpriority, 0, 0, ++count % 19);
	} else if (same(word, "cwd")) {
		sys1(__NR_chdir, ++count % 2 ? "/etc" : "/");
	} else if (same(word, "fork")) {
		if (!fork()) {
			/* Whoever asked waits for the end of one, and the name shall be free. */
			sys3(__NR_close_range, 3, -1u, 0);
			for (;;)
				sys0(__NR_pause);
		}
	}
}

static void serve(char **words)
{
	struct server it = { .file = words[2] };
	int ticks = same(words[1], "ticks"), writes = same(words[1], "writes");
	int sits = same(words[1], "sits");
	long server = listening(words[0]), log = -1;

	if (writes)
		log = open_at(it.file, O_WRONLY | O_CREAT | O_APPEND);
	for (;;) {
		struct { int fd; short wants, has; } ready = { server, 1, 0 };
		char word[32] = "";

		if (!sits && sys3(__NR_poll, &ready, 1, PERIOD) <= 0) {
			if (ticks)
				count++;
			if (writes)
				write_all(log, "all the time....\n", 17);
			continue;
		}
		it.client = sys3(__NR_accept, server, 0, 0);
		if (it.client < 0)
			continue;
		sys3(__NR_read, it.client, word, sizeof(word) - 1);
		obey(&it, word);
		sys1(__NR_close, it.client);
		if (same(word, "rename")) {
			/* The words are behind its own name. */
			words[-2] = "renamed";
			sys3(__NR_execve, "/agent", words - 2, 0);
		}
	}
}

static char **copy_of_words(char **to, char *first, char *second, char **rest_of_them)
{
	to[0] = first;
	to[1] = second;
	to[2] = rest_of_them[0];
	to[3] = rest_of_them[1];
	to[4] = rest_of_them[2];
	to[5] = 0;
	return to;
}

/* spawn NAME ROLE FILE: it leaves by setsid and a double fork, and has a name of its own. */
static long op_spawn(char **a)
{
	static char *words[6];
	long child = fork(), connection, pid;

	if (!child) {
		sys0(__NR_setsid);
		if (!fork()) {
			for (long fd = 0; fd < 3; fd++)
				sys1(__NR_close, fd);
			open_at("/dev/null", O_RDWR);
			sys1(__NR_dup, 0);
			sys1(__NR_dup, 0);
			sys3(__NR_execve, "/agent", copy_of_words(words, "server", "serve", a), 0);
			quit(127);
		}
		quit(0);
	}
	sys4(__NR_wait4, child, 0, 0, 0);
	while ((connection = connected(a[0])) < 0)
		rest(500);
	pid = pid_of(connection);
	sys1(__NR_close, connection);
	wait_until_back(pid);
	return 0;
}

/* tell NAME WORD */
static long op_tell(char **a)
{
	long connection = connected(a[0]), pid;
	char byte;

	if (connection < 0)
		return connection;
	pid = pid_of(connection);
	write_all(connection, a[1], length(a[1]));
	/* To the end of the answer, which is none. */
	while (sys3(__NR_read, connection, &byte, 1) > 0)
		;
	sys1(__NR_close, connection);
	wait_until_back(pid);
	return 0;
}

/* kill NAME, and whatever it has forked. */
static long op_kill(char **a)
{
	long connection = connected(a[0]), pid = pid_of(connection), ret;
	char state;

	if (connection < 0)
		return connection;
	sys1(__NR_close, connection);
	ret = sys2(__NR_kill, pid, SIGKILL);
	do
		state = state_of(pid);
	while (state && state != 'Z');
	return ret;
}

#endif

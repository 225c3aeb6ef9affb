/* SPDX-License-Identifier: Apache-2.0 */
/*
 * System calls as they are, with no library between: what an operation does to the
 * sandbox is what its calls do, and a process that stays behind has little memory to
 * compare. Results are -errno on failure.
 */
#ifndef AGENT_RAW_H
#define AGENT_RAW_H

#include <asm/unistd.h>

/* <linux/fcntl.h> has not all of these for user space. */
#define O_WRONLY 01
#define O_RDWR 02
#define O_CREAT 0100
#define O_TRUNC 01000
#define O_APPEND 02000
#define O_NONBLOCK 04000
#define O_TMPFILE_DIR 020200000
#define AT_FDCWD -100
#define AT_REMOVEDIR 0x200
#define AT_SYMLINK_NOFOLLOW 0x100
#define AT_SYMLINK_FOLLOW 0x400
#define PROT_READ 1
#define PROT_WRITE 2
#define MAP_SHARED 1
#define MAP_PRIVATE 2
#define MAP_POPULATE 0x8000
#define EINTR 4
#define ESRCH 3
#define EEXIST 17
#define EINVAL 22
#define SIGKILL 9
#define SIGCHLD 17

static long sys(long n, long a, long b, long c, long d, long e, long f)
{
	register long r10 __asm__("r10") = d;
	register long r8 __asm__("r8") = e;
	register long r9 __asm__("r9") = f;
	long ret;

	__asm__ volatile("syscall"
			 : "=a"(ret)
			 : "a"(n), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
			 : "rcx", "r11", "memory");
	return ret;
}

#define sys0(n) sys(n, 0, 0, 0, 0, 0, 0)
#define sys1(n, a) sys(n, (long)(a), 0, 0, 0, 0, 0)
#define sys2(n, a, b) sys(n, (long)(a), (long)(b), 0, 0, 0, 0)
#define sys3(n, a, b, c) sys(n, (long)(a), (long)(b), (long)(c), 0, 0, 0)
#define sys4(n, a, b, c, d) sys(n, (long)(a), (long)(b), (long)(c), (long)(d), 0, 0)
#define sys5(n, a, b, c, d, e) \
	sys(n, (long)(a), (long)(b), (long)(c), (long)(d), (long)(e), 0)
#define sys6(n, a, b, c, d, e, f) \
	sys(n, (long)(a), (long)(b), (long)(c), (long)(d), (long)(e), (long)(f))

/* The compiler calls these by itself. */
void *memset(void *to, int byte, unsigned long n)
{
	for (char *p = to; n--;)
		*p++ = byte;
	return to;
}

void *memcpy(void *to, const void *from, unsigned long n)
{
	char *p = to;

	for (const char *q = from; n--;)
		*p++ = *q++;
	return to;
}

static unsigned long length(const char *text)
{
	unsigned long n = 0;

	while (text[n])
		n++;
	return n;
}

static int same(const char *a, const char *b)
{
	while (*a && *a == *b)
		a++, b++;
	return *a == *b;
}

static long number(const char *text)
{
	int negative = *text == '-';
	long n = 0;

	for (text += negative; *text >= '0' && *text <= '9'; text++)
		n = n * 10 + (*text - '0');
	return negative ? -n : n;
}

/* Digits at `to`, and where they end. */
static char *put_number(char *to, unsigned long n)
{
	char digits[24];
	int at = sizeof(digits);

	do
		digits[--at] = '0' + n % 10;
	while (n /= 10);
	memcpy(to, digits + at, sizeof(digits) - at);
	to += sizeof(digits) - at;
	*to = 0;
	return to;
}

static char *put_text(char *to, const char *text)
{
	while (*text)
		*to++ = *text++;
	*to = 0;
	return to;
}

static void rest(long microseconds)
{
	long time[2] = { microseconds / 1000000, microseconds % 1000000 * 1000 };

	sys2(__NR_nanosleep, time, 0);
}

static void quit(int status)
{
	sys1(__NR_exit_group, status);
	for (;;)
		;
}

static long fork(void)
{
	return sys5(__NR_clone, SIGCHLD, 0, 0, 0, 0);
}

/* What a file is filled with: bytes that the seed tells. */
#define BLOCK 65536
static char block[BLOCK];

static char *filled(long seed, long n)
{
	unsigned long state = seed * 0x9e3779b97f4a7c15ul + 1;

	for (long at = 0; at < n && at < BLOCK; at++) {
		state = state * 6364136223846793005ul + 1442695040888963407ul;
		block[at] = state >> 56;
	}
	return block;
}

static long write_all(long fd, const char *bytes, long n)
{
	long done = 0;

	while (done < n) {
		long ret = sys3(__NR_write, fd, bytes + done, n - done);

		if (ret <= 0)
			return ret;
		done += ret;
	}
	return done;
}

#endif

// SPDX-License-Identifier: Apache-2.0
//
// Counts the bytes that it reads from a FIFO, in its memory alone, and writes the count into a file
// after each. Needs nothing of the image that it runs in: no libraries, no C runtime. x86-64.
//
//   clang -O1 -static -nostdlib -ffreestanding -fno-stack-protector -s -o counter counter.c

enum { READ = 0, WRITE = 1, OPEN = 2, CLOSE = 3, EXIT = 60 };
enum { RDWR = 2, WRONLY = 1, CREAT = 0100, TRUNC = 01000 };

static long call(long number, long a, long b, long c)
{
	long result;
	__asm__ volatile("syscall"
			 : "=a"(result)
			 : "a"(number), "D"(a), "S"(b), "d"(c)
			 : "rcx", "r11", "memory");
	return result;
}

void _start(void)
{
	unsigned long count = 0;
	// Also for writing: it never reads an end.
	long fifo = call(OPEN, (long)"/root/ask", RDWR, 0);
	if (fifo < 0)
		call(EXIT, 1, 0, 0);
	for (;;) {
		char byte, text[24];
		int at = sizeof(text);
		if (call(READ, fifo, (long)&byte, 1) != 1)
			continue;
		count++;
		text[--at] = '\n';
		for (unsigned long rest = count; rest; rest /= 10)
			text[--at] = '0' + rest % 10;
		long file = call(OPEN, (long)"/root/count", WRONLY | CREAT | TRUNC, 0600);
		call(WRITE, file, (long)&text[at], sizeof(text) - at);
		call(CLOSE, file, 0, 0);
	}
}

/* SPDX-License-Identifier: Apache-2.0 */
/* System V IPC: state of the container that no file and no process holds. */
#ifndef AGENT_IPC_H
#define AGENT_IPC_H

#include "raw.h"

#define IPC_CREAT 01000
#define IPC_RMID 0

/* sysvshm KEY SEED */
static long op_sysvshm(char **a)
{
	long id = sys3(__NR_shmget, number(a[0]), 4096, IPC_CREAT | 0600);
	long at = id < 0 ? id : sys3(__NR_shmat, id, 0, 0);

	if ((unsigned long)at > -4096ul)
		return at;
	memcpy((void *)at, filled(number(a[1]), 64), 64);
	return sys1(__NR_shmdt, at);
}

/* sysvmsg KEY SEED */
static long op_sysvmsg(char **a)
{
	struct { long type; char text[16]; } message = { 1, "" };
	long id = sys2(__NR_msgget, number(a[0]), IPC_CREAT | 0600);

	put_number(message.text, number(a[1]) & 0xffff);
	return id < 0 ? id : sys4(__NR_msgsnd, id, &message, sizeof(message.text), 04000);
}

/* sysvsem KEY */
static long op_sysvsem(char **a)
{
	struct { unsigned short which; short add, flags; } up = { 0, 1, 04000 };
	long id = sys3(__NR_semget, number(a[0]), 1, IPC_CREAT | 0600);

	return id < 0 ? id : sys3(__NR_semop, id, &up, 1);
}

/* sysvgone KEY: all three are removed. */
static long op_sysvgone(char **a)
{
	long key = number(a[0]), id;

	if ((id = sys3(__NR_shmget, key, 0, 0)) >= 0)
		sys3(__NR_shmctl, id, IPC_RMID, 0);
	if ((id = sys2(__NR_msgget, key, 0)) >= 0)
		sys3(__NR_msgctl, id, IPC_RMID, 0);
	if ((id = sys3(__NR_semget, key, 0, 0)) >= 0)
		sys4(__NR_semctl, id, 0, IPC_RMID, 0);
	return 0;
}

#endif

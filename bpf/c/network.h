/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * What no rollback undoes: a sandbox that connects, listens, or sends to the
 * network. The same in every set; a kernel without one of these tracepoints
 * leaves that counter at rest.
 *
 * Loopback does not count where the socket's own address tells it. What a task of
 * the sandbox sends through a socket that it was given counts for it; what the
 * kernel sends by itself (retransmissions, the rest of a closed socket's queue) was
 * counted when it was written.
 */
#ifndef CRAB_NETWORK_H
#define CRAB_NETWORK_H

#include "whose.h"

#define AF_INET 2
#define AF_INET6 10
#define TCP_SYN_SENT 2
#define TCP_LISTEN 10

static __always_inline int is_outbound(struct sock *sk)
{
	__u16 family = sk->__sk_common.skc_family;

	if (family == AF_INET) /* in network order */
		return (sk->__sk_common.skc_rcv_saddr & 0xff) != 127;
	return family == AF_INET6;
}

SEC("tp_btf/inet_sock_set_state")
int inet_sock_set_state(unsigned long long *ctx)
{
	struct sock *sk = (struct sock *)ctx[0];
	int state = ctx[2];

	if ((state != TCP_SYN_SENT && state != TCP_LISTEN) || !is_outbound(sk))
		return 0;
	by_cgroup(state == TCP_LISTEN ? CRAB_LISTENED : CRAB_CONNECTED);
	return 0;
}

SEC("tp_btf/sock_send_length")
int sock_send_length(unsigned long long *ctx)
{
	struct sock *sk = (struct sock *)ctx[0];
	int sent = ctx[1];

	if (sent <= 0 || !is_outbound(sk))
		return 0;
	by_cgroup_many(CRAB_SENT, sent);
	return 0;
}

#endif

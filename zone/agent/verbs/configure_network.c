/* ConfigureNetwork: waits for the interface by netlink events, then sets it up. */
#include <errno.h>
#include <linux/rtnetlink.h>
#include <net/if.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "channel/call.h"
#include "container/moves.h"
#include "sys/loop.h"
#include "sys/netlink.h"
#include "sys/pod_userns.h"
#include "verbs/network.h"
#include "verbs/verbs.h"

#define DEADLINE_NS (10 * SECOND_NS)

/* Calls of earlier connections count too. */
enum { WAITS_MAX = 64 };

static unsigned int waits;

struct wait {
	struct call *call;
	struct watch events;
	struct timer deadline;
};

static unsigned int interface_index(const ConfigureNetwork *request)
{
	char kernel_name[IF_NAMESIZE];
	unsigned int index;

	snprintf(kernel_name, sizeof(kernel_name), "eth%u", request->index);
	index = if_nametoindex(kernel_name);
	/* When the call is repeated, the interface has its new name already. */
	return index || !request->name[0] ? index : if_nametoindex(request->name);
}

/* Finds the interface.  New interfaces appear in the first network namespace: a pod with its own namespace fetches them
 * from the first.  0 with errno 0: not there yet. */
static unsigned int interface_fetch(const ConfigureNetwork *request)
{
	unsigned int index = interface_index(request);
	int error = 0;

	errno = 0;
	if (index || !pod_userns_exists())
		return index;
	if (pod_network_leave() < 0)
		return 0;
	index = interface_index(request);
	if (index && interface_move(index, pod_network_fd()) < 0)
		error = errno;
	pod_network_enter();
	index = error ? 0 : interface_index(request);
	errno = error;
	return index;
}

static void apply(struct call *call, unsigned int index)
{
	struct fault fault;

	steps_next(&call->steps, STEP(INTERFACE), call->begun_ns);
	/* A pod's containers follow soon after its network. */
	moves_expect();
	call_end(call, network_apply(call->request->configure_network, index, &fault), &fault);
}

static struct call *end_wait(struct wait *wait)
{
	struct call *call = wait->call;

	timer_stop(&wait->deadline);
	loop_unwatch(&wait->events);
	close(wait->events.fd);
	free(wait);
	waits--;
	return call;
}

static void on_deadline(struct timer *timer)
{
	struct call *call = end_wait(container_of(timer, struct wait, deadline));
	struct fault fault;

	fault_set(&fault, DEADLINE_EXCEEDED, "wait for interface: eth%u: it did not appear within 10 s",
		  call->request->configure_network->index);
	call_fail(call, &fault);
}

static void fail_move(struct call *call)
{
	struct fault fault;

	fault_errno(&fault, "move interface", "to the pod's network");
	call_fail(call, &fault);
}

static void links_changed(struct watch *watch, uint32_t events)
{
	struct wait *wait = container_of(watch, struct wait, events);
	uint8_t news[4096];
	unsigned int index;

	(void)events;
	/* The events are not parsed: each one triggers a new search.  Lost events (ENOBUFS) therefore do no harm. */
	while (recv(watch->fd, news, sizeof(news), MSG_DONTWAIT) > 0 || errno == ENOBUFS)
		;
	index = interface_fetch(wait->call->request->configure_network);
	if (index)
		apply(end_wait(wait), index);
	else if (errno)
		fail_move(end_wait(wait));
}

static int wait_begin(struct call *call, struct fault *fault)
{
	struct wait *wait;

	if (waits >= WAITS_MAX)
		return fault_set(fault, RESOURCE_EXHAUSTED, "wait for interface: %d calls wait already", WAITS_MAX);
	wait = calloc(1, sizeof(*wait));
	if (!wait)
		return fault_errno(fault, "wait for interface", "memory");
	*wait = (struct wait){
		.call = call,
		.events = { .fd = pod_network_listen_outside(NETLINK_ROUTE, RTMGRP_LINK), .ready = links_changed },
		.deadline = { .fire = on_deadline },
	};
	if (wait->events.fd < 0 || loop_watch(&wait->events, EPOLLIN) < 0) {
		fault_errno(fault, "wait for interface", "netlink");
		if (wait->events.fd >= 0)
			close(wait->events.fd);
		free(wait);
		return -1;
	}
	waits++;
	timer_arm(&wait->deadline, DEADLINE_NS);
	/* The interface may have come just before the socket. */
	links_changed(&wait->events, 0);
	return 0;
}

void configure_network(struct call *call)
{
	ConfigureNetwork *request = call->request->configure_network;
	struct fault fault;
	unsigned int index;

	if (network_check(request, &fault) < 0) {
		call_fail(call, &fault);
		return;
	}
	index = interface_fetch(request);
	if (index)
		apply(call, index);
	else if (errno)
		fail_move(call);
	else if (wait_begin(call, &fault) < 0)
		call_fail(call, &fault);
}

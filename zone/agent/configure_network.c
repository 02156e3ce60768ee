/* ConfigureNetwork: waits, by netlink's own events, until the interface is there. */
#include <errno.h>
#include <linux/rtnetlink.h>
#include <net/if.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "call.h"
#include "loop.h"
#include "netlink.h"
#include "network.h"
#include "podns.h"

#define DEADLINE_NS (10 * SECOND_NS)

/* Those of earlier connections count too. */
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
	/* It has its new name already when the call is repeated. */
	return index || !request->name[0] ? index : if_nametoindex(request->name);
}

/* New interfaces appear where the kernel began; a pod with a network namespace of its own gets them from there.
 * 0 with errno 0: there is none yet. */
static unsigned int interface_fetch(const ConfigureNetwork *request)
{
	unsigned int index = interface_index(request);
	int error = 0;

	errno = 0;
	if (index || !podns_is())
		return index;
	if (podns_outside() < 0)
		return 0;
	index = interface_index(request);
	if (index && network_move(index, podns_network()) < 0)
		error = errno;
	podns_inside();
	index = error ? 0 : interface_index(request);
	errno = error;
	return index;
}

static void apply(struct call *call, unsigned int index)
{
	struct fault fault;

	call_end(call, network_apply(call->request->configure_network, index, &fault), &fault);
}

static struct call *end_wait(struct wait *wait)
{
	struct call *call = wait->call;

	timer_stop(&wait->deadline);
	loop_drop(&wait->events);
	close(wait->events.fd);
	free(wait);
	waits--;
	return call;
}

static void too_late(struct timer *timer)
{
	struct call *call = end_wait(container_of(timer, struct wait, deadline));
	struct fault fault;

	fault_set(&fault, DEADLINE_EXCEEDED, "wait for interface: eth%u: it did not appear within 10 s",
		  call->request->configure_network->index);
	call_fail(call, &fault);
}

static void not_fetched(struct call *call)
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
	/* What changed is asked for, not parsed: lost news (ENOBUFS) lose nothing then. */
	while (recv(watch->fd, news, sizeof(news), MSG_DONTWAIT) > 0 || errno == ENOBUFS)
		;
	index = interface_fetch(wait->call->request->configure_network);
	if (index)
		apply(end_wait(wait), index);
	else if (errno)
		not_fetched(end_wait(wait));
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
		.events = { .fd = podns_news(NETLINK_ROUTE, RTMGRP_LINK), .ready = links_changed },
		.deadline = { .fire = too_late },
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
	/* It may have come just before the socket. */
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
		not_fetched(call);
	else if (wait_begin(call, &fault) < 0)
		call_fail(call, &fault);
}

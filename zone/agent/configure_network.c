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
#include "say.h"

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

static void links_changed(struct watch *watch, uint32_t events)
{
	struct wait *wait = container_of(watch, struct wait, events);
	uint8_t news[4096];
	unsigned int index;

	(void)events;
	/* What changed is asked for, not parsed: lost news (ENOBUFS) lose nothing then. */
	while (recv(watch->fd, news, sizeof(news), MSG_DONTWAIT) > 0 || errno == ENOBUFS)
		;
	index = interface_index(wait->call->request->configure_network);
	if (index)
		apply(end_wait(wait), index);
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
		.events = { .fd = netlink_open(RTMGRP_LINK), .ready = links_changed },
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
	index = interface_index(request);
	if (index)
		apply(call, index);
	else if (wait_begin(call, &fault) < 0)
		call_fail(call, &fault);
}

/* rtnetlink: one request, one acknowledgement. */
#ifndef NETLINK_H
#define NETLINK_H

#include <linux/netlink.h>
#include <stddef.h>
#include <stdint.h>

enum { NETLINK_REQUEST_MAX = 512 };

struct netlink_request {
	union {
		struct nlmsghdr header;
		uint8_t bytes[NETLINK_REQUEST_MAX];
	};
};

/* A socket of a protocol (NETLINK_...) that also hears of `groups`; -1 with errno. */
int netlink_open(int protocol, uint32_t groups);
/* `body` is the family's fixed part (ifinfomsg, ifaddrmsg, rtmsg). */
void netlink_begin(struct netlink_request *request, uint16_t type, uint16_t flags, const void *body, size_t size);
void netlink_add(struct netlink_request *request, uint16_t type, const void *data, size_t size);
/* Sends it and takes the kernel's answer; -1 with errno. */
int netlink_do(struct netlink_request *request);

#endif

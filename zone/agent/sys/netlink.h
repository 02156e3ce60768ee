/* rtnetlink: one request, one acknowledgement; and the few requests about a whole interface. */
#ifndef SYS_NETLINK_H
#define SYS_NETLINK_H

#include <linux/netlink.h>
#include <stddef.h>
#include <stdint.h>

enum { NETLINK_REQUEST_MAX = 512, MAC_SIZE = 6 };

struct netlink_request {
	union {
		struct nlmsghdr header;
		uint8_t bytes[NETLINK_REQUEST_MAX];
	};
};

/* Opens a socket of a protocol (NETLINK_...) that also receives the messages of `groups`.  -1 with errno. */
int netlink_open(int protocol, uint32_t groups);
/* Begins a request; `body` is the family's fixed part (ifinfomsg, ifaddrmsg, rtmsg). */
void netlink_begin(struct netlink_request *request, uint16_t type, uint16_t flags, const void *body, size_t size);
void netlink_add(struct netlink_request *request, uint16_t type, const void *data, size_t size);
/* Sends the request and reads the kernel's answer.  -1 with errno. */
int netlink_send(struct netlink_request *request);

/* New settings of an interface; "", NULL and 0 change nothing. */
struct interface_settings {
	const char *name;
	const uint8_t *mac; /* MAC_SIZE bytes */
	uint32_t mtu;
};

/* Each returns -1 with errno. */
int interface_up(unsigned int index);
int interface_down(unsigned int index);
/* A name or a MAC can be set only while the interface is down. */
int interface_set(unsigned int index, const struct interface_settings *settings);
/* Moves an interface to another network namespace. */
int interface_move(unsigned int index, int namespace);
/* Sets the loopback interface up.  -1 with a log line. */
int interface_loopback_up(void);

#endif

#include "sys/netlink.h"

#include <errno.h>
#include <linux/rtnetlink.h>
#include <net/if.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "sys/log.h"

int netlink_open(int protocol, uint32_t groups)
{
	struct sockaddr_nl address = { .nl_family = AF_NETLINK, .nl_groups = groups };
	int fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, protocol);
	int error;

	if (fd < 0)
		return -1;
	if (bind(fd, (struct sockaddr *)&address, sizeof(address)) == 0)
		return fd;
	error = errno;
	close(fd);
	errno = error;
	return -1;
}

void netlink_begin(struct netlink_request *request, uint16_t type, uint16_t flags, const void *body, size_t size)
{
	memset(request, 0, sizeof(*request));
	request->header.nlmsg_type = type;
	request->header.nlmsg_flags = (uint16_t)(NLM_F_REQUEST | NLM_F_ACK | flags);
	request->header.nlmsg_len = (uint32_t)NLMSG_LENGTH(size);
	memcpy(request->bytes + NLMSG_HDRLEN, body, size);
}

void netlink_add(struct netlink_request *request, uint16_t type, const void *data, size_t size)
{
	size_t at = NLMSG_ALIGN(request->header.nlmsg_len);
	struct rtattr attribute = { .rta_len = (uint16_t)RTA_LENGTH(size), .rta_type = type };

	/* Callers add a few addresses and names: an overflowing request is a bug. */
	if (at + RTA_SPACE(size) > NETLINK_REQUEST_MAX)
		__builtin_trap();
	memcpy(request->bytes + at, &attribute, sizeof(attribute));
	memcpy(request->bytes + at + RTA_LENGTH(0), data, size);
	request->header.nlmsg_len = (uint32_t)(at + RTA_LENGTH(size));
}

/* rtnetlink does the work within send(): the answer is ready when send() returns. */
static int exchange(int fd, const struct netlink_request *request)
{
	struct {
		struct nlmsghdr header;
		struct nlmsgerr error;
		uint8_t rest[NETLINK_REQUEST_MAX + 256];
	} answer;
	ssize_t n = send(fd, request->bytes, request->header.nlmsg_len, 0);

	if (n < 0)
		return -1;
	n = recv(fd, &answer, sizeof(answer), MSG_DONTWAIT);
	if (n < 0)
		return -1;
	if ((size_t)n < NLMSG_LENGTH(sizeof(struct nlmsgerr)) || answer.header.nlmsg_type != NLMSG_ERROR) {
		errno = EPROTO;
		return -1;
	}
	errno = -answer.error.error;
	return answer.error.error ? -1 : 0;
}

int netlink_send(struct netlink_request *request)
{
	int fd = netlink_open(NETLINK_ROUTE, 0);
	int result, error;

	if (fd < 0)
		return -1;
	result = exchange(fd, request);
	error = errno;
	close(fd);
	errno = error;
	return result;
}

static int change_link(unsigned int index, unsigned int flags, const struct interface_settings *settings)
{
	struct ifinfomsg body = {
		.ifi_family = AF_UNSPEC,
		.ifi_index = (int)index,
		.ifi_flags = flags,
		.ifi_change = IFF_UP,
	};
	struct netlink_request message;

	netlink_begin(&message, RTM_NEWLINK, 0, &body, sizeof(body));
	if (settings->name[0])
		netlink_add(&message, IFLA_IFNAME, settings->name, strlen(settings->name) + 1);
	if (settings->mac)
		netlink_add(&message, IFLA_ADDRESS, settings->mac, MAC_SIZE);
	if (settings->mtu)
		netlink_add(&message, IFLA_MTU, &settings->mtu, sizeof(settings->mtu));
	return netlink_send(&message);
}

static const struct interface_settings nothing = { .name = "" };

int interface_up(unsigned int index)
{
	return change_link(index, IFF_UP, &nothing);
}

int interface_down(unsigned int index)
{
	return change_link(index, 0, &nothing);
}

int interface_set(unsigned int index, const struct interface_settings *settings)
{
	return change_link(index, 0, settings);
}

int interface_move(unsigned int index, int namespace)
{
	struct ifinfomsg body = { .ifi_family = AF_UNSPEC, .ifi_index = (int)index };
	struct netlink_request message;

	netlink_begin(&message, RTM_NEWLINK, 0, &body, sizeof(body));
	netlink_add(&message, IFLA_NET_NS_FD, &namespace, sizeof(namespace));
	return netlink_send(&message);
}

int interface_loopback_up(void)
{
	unsigned int index = if_nametoindex("lo");

	if (!index || interface_up(index) < 0) {
		log_errno("set interface up", "lo");
		return -1;
	}
	return 0;
}

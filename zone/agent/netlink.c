#include "netlink.h"

#include <errno.h>
#include <linux/rtnetlink.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

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

	/* Callers add a handful of addresses and names; a request that overflows is a bug. */
	if (at + RTA_SPACE(size) > NETLINK_REQUEST_MAX)
		__builtin_trap();
	memcpy(request->bytes + at, &attribute, sizeof(attribute));
	memcpy(request->bytes + at + RTA_LENGTH(0), data, size);
	request->header.nlmsg_len = (uint32_t)(at + RTA_LENGTH(size));
}

/* rtnetlink works within send(), so its answer is there when that returns. */
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

int netlink_do(struct netlink_request *request)
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

#include "verbs/network.h"

#include <arpa/inet.h>
#include <errno.h>
#include <linux/if_addr.h>
#include <linux/rtnetlink.h>
#include <net/if.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "sys/file.h"
#include "sys/name.h"
#include "sys/netlink.h"

enum { ADDRESSES_MAX = 32, ROUTES_MAX = 64, MTU_MIN = 68, MTU_MAX = 65535, CIDR_MAX = 64 };

struct ip {
	uint8_t family;
	uint8_t prefix;
	uint8_t bytes[16];
};

static size_t ip_size(const struct ip *ip)
{
	return ip->family == AF_INET ? 4 : 16;
}

static int ip_parse(const char *untrusted, struct ip *ip)
{
	ip->family = strchr(untrusted, ':') ? AF_INET6 : AF_INET;
	ip->prefix = ip->family == AF_INET ? 32 : 128;
	return inet_pton(ip->family, untrusted, ip->bytes) == 1 ? 0 : -1;
}

static int cidr_parse(const char *untrusted, struct ip *ip)
{
	char text[CIDR_MAX];
	char *slash;
	uint64_t prefix;

	if (path_format(text, sizeof(text), "%s", untrusted) < 0)
		return -1;
	slash = strchr(text, '/');
	if (!slash)
		return -1;
	*slash = '\0';
	if (ip_parse(text, ip) < 0 || !number_parse(slash + 1, ip->prefix, &prefix))
		return -1;
	ip->prefix = (uint8_t)prefix;
	return 0;
}

static int check_routes(const ConfigureNetwork *untrusted, struct fault *fault)
{
	struct ip destination, gateway;

	for (size_t i = 0; i < untrusted->n_routes; i++) {
		const Route *route = untrusted->routes[i];

		if (cidr_parse(route->destination, &destination) < 0)
			return fault_set(fault, INVALID_ARGUMENT, "network: route %zu: no destination", i);
		if (route->gateway[0] &&
		    (ip_parse(route->gateway, &gateway) < 0 || gateway.family != destination.family))
			return fault_set(fault, INVALID_ARGUMENT, "network: route %zu: no gateway", i);
	}
	return 0;
}

int network_check(const ConfigureNetwork *untrusted, struct fault *fault)
{
	struct ip address;

	if (untrusted->index > 63)
		return fault_set(fault, INVALID_ARGUMENT, "network: no interface %u", untrusted->index);
	if (untrusted->name[0] && !interface_name_valid(untrusted->name))
		return fault_set(fault, INVALID_ARGUMENT, "network: not an interface's name");
	if (untrusted->mac.len && untrusted->mac.len != MAC_SIZE)
		return fault_set(fault, INVALID_ARGUMENT, "network: a MAC of %zu bytes", untrusted->mac.len);
	if (untrusted->mtu && (untrusted->mtu < MTU_MIN || untrusted->mtu > MTU_MAX))
		return fault_set(fault, INVALID_ARGUMENT, "network: an MTU of %u", untrusted->mtu);
	if (untrusted->n_addresses > ADDRESSES_MAX || untrusted->n_routes > ROUTES_MAX)
		return fault_set(fault, INVALID_ARGUMENT, "network: more than %d addresses or %d routes",
				 ADDRESSES_MAX, ROUTES_MAX);
	for (size_t i = 0; i < untrusted->n_addresses; i++)
		if (cidr_parse(untrusted->addresses[i], &address) < 0)
			return fault_set(fault, INVALID_ARGUMENT, "network: address %zu: not in CIDR notation", i);
	return check_routes(untrusted, fault);
}

static int add_address(unsigned int index, const char *text, struct fault *fault)
{
	struct ifaddrmsg body = { .ifa_index = index };
	struct netlink_request message;
	struct ip ip;

	if (cidr_parse(text, &ip) < 0)
		return fault_set(fault, INVALID_ARGUMENT, "network: %s: not an address", text);
	body.ifa_family = ip.family;
	body.ifa_prefixlen = ip.prefix;
	/* The host's CNI gave the address to this zone alone, and a pod cannot wait for duplicate detection. */
	body.ifa_flags = ip.family == AF_INET6 ? IFA_F_NODAD : 0;
	netlink_begin(&message, RTM_NEWADDR, NLM_F_CREATE | NLM_F_REPLACE, &body, sizeof(body));
	netlink_add(&message, IFA_LOCAL, ip.bytes, ip_size(&ip));
	netlink_add(&message, IFA_ADDRESS, ip.bytes, ip_size(&ip));
	if (netlink_send(&message) < 0)
		return fault_errno(fault, "add address", text);
	return 0;
}

static int add_route(unsigned int index, const Route *route, struct fault *fault)
{
	struct rtmsg body = {
		.rtm_table = RT_TABLE_MAIN,
		.rtm_protocol = RTPROT_STATIC,
		.rtm_scope = route->gateway[0] ? RT_SCOPE_UNIVERSE : RT_SCOPE_LINK,
		.rtm_type = RTN_UNICAST,
	};
	struct netlink_request message;
	struct ip destination, gateway;

	if (cidr_parse(route->destination, &destination) < 0 ||
	    (route->gateway[0] && ip_parse(route->gateway, &gateway) < 0))
		return fault_set(fault, INVALID_ARGUMENT, "network: %s: not a route", route->destination);
	body.rtm_family = destination.family;
	body.rtm_dst_len = destination.prefix;
	netlink_begin(&message, RTM_NEWROUTE, NLM_F_CREATE | NLM_F_REPLACE, &body, sizeof(body));
	if (destination.prefix)
		netlink_add(&message, RTA_DST, destination.bytes, ip_size(&destination));
	if (route->gateway[0])
		netlink_add(&message, RTA_GATEWAY, gateway.bytes, ip_size(&gateway));
	netlink_add(&message, RTA_OIF, &index, sizeof(index));
	if (netlink_send(&message) < 0)
		return fault_errno(fault, "add route", route->destination);
	return 0;
}

int network_apply(const ConfigureNetwork *request, unsigned int index, struct fault *fault)
{
	const struct interface_settings settings = {
		.name = request->name,
		.mac = request->mac.len ? request->mac.data : NULL,
		.mtu = request->mtu,
	};

	if (interface_down(index) < 0)
		return fault_errno(fault, "set interface down", request->name);
	if (interface_set(index, &settings) < 0)
		return fault_errno(fault, "set up interface", request->name);
	if (interface_up(index) < 0)
		return fault_errno(fault, "set interface up", request->name);
	for (size_t i = 0; i < request->n_addresses; i++)
		if (add_address(index, request->addresses[i], fault) < 0)
			return -1;
	for (size_t i = 0; i < request->n_routes; i++)
		if (add_route(index, request->routes[i], fault) < 0)
			return -1;
	return 0;
}

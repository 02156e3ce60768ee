"""Requests to the kernel about interfaces: their addresses, routes, and programs for arriving frames.

Sources: rtnetlink(7), netdevice(7), linux/if_link.h, linux/pkt_cls.h.
"""

from __future__ import annotations

import errno
import fcntl
import socket
import struct
from dataclasses import dataclass

from pyroute2.netlink import NLM_F_CREATE, NLM_F_EXCL
from pyroute2.netlink.exceptions import NetlinkError
from pyroute2.netlink.rtnl import (
    RTM_DELLINK,
    RTM_DELQDISC,
    RTM_GETADDR,
    RTM_GETROUTE,
    RTM_GETTFILTER,
    RTM_NEWLINK,
    RTM_NEWQDISC,
    RTM_NEWTFILTER,
    TC_H_INGRESS,
)
from pyroute2.netlink.rtnl.ifaddrmsg import ifaddrmsg
from pyroute2.netlink.rtnl.ifinfmsg import IFF_UP, ifinfmsg
from pyroute2.netlink.rtnl.rtmsg import rtmsg
from pyroute2.netlink.rtnl.tcmsg import tcmsg

from protect.network.netlink import Message, Netlink

_NEW = NLM_F_CREATE | NLM_F_EXCL
_TABLE_MAIN = 254
_INGRESS = 0xFFFF0000
# Priority 1 and every protocol (ETH_P_ALL, in the order of the network).
_INFO = 1 << 16 | socket.htons(0x0003)
_BPF_DECIDES = 1  # TCA_BPF_FLAG_ACT_DIRECT
_SIOCGIFMTU, _SIOCGIFHWADDR = 0x8921, 0x8927


@dataclass(frozen=True, slots=True)
class Interface:
    """The attributes of an interface that its guest needs."""

    index: int
    mac: bytes
    mtu: int


def find_interface(name: str) -> Interface | None:
    """The interface of this name in the calling thread's namespace, or None; by the ioctls of netdevice(7).

    Netlink's answer has forty more attributes, and pyroute2 would decode all of them for nothing.
    """
    wanted = struct.pack("16s24x", name.encode())  # struct ifreq
    try:
        index = socket.if_nametoindex(name)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
            mac = fcntl.ioctl(asked, _SIOCGIFHWADDR, wanted)[18:24]  # after the family of struct sockaddr
            (mtu,) = struct.unpack_from("i", fcntl.ioctl(asked, _SIOCGIFMTU, wanted), 16)
    except OSError as error:
        if error.errno in (None, errno.ENODEV):  # if_nametoindex sets no errno
            return None
        raise
    return Interface(index, mac, mtu)


def index_of(name: str) -> int | None:
    """The index of the interface of this name; None if missing.

    Unlike ``find``, this function never makes the kernel load a module of this name.
    """
    return next((index for index, found in socket.if_nameindex() if found == name), None)


def add_veth(netlink: Netlink, name: str, namespace: int, peer: str, peer_namespace: int) -> None:
    """Make a veth pair, with each end in the namespace of its descriptor."""
    other = _link(IFLA_IFNAME=peer, IFLA_NET_NS_FD=peer_namespace)
    data = {"attrs": [("VETH_INFO_PEER", other)]}
    info = {"attrs": [("IFLA_INFO_KIND", "veth"), ("IFLA_INFO_DATA", data)]}
    wanted = _link(IFLA_IFNAME=name, IFLA_NET_NS_FD=namespace, IFLA_LINKINFO=info)
    netlink.request(RTM_NEWLINK, wanted, _NEW)


def delete(netlink: Netlink, name: str) -> None:
    """Delete the interface of this name; a missing interface is no error."""
    try:
        netlink.request(RTM_DELLINK, _link(IFLA_IFNAME=name))
    except NetlinkError as error:
        if error.code != errno.ENODEV:
            raise


def move(netlink: Netlink, name: str, namespace: int) -> bool:
    """Take an interface down, and move it to the namespace of a descriptor; False: no such interface."""
    wanted = _link(IFLA_IFNAME=name, IFLA_NET_NS_FD=namespace)
    wanted["change"] = IFF_UP
    try:
        netlink.request(RTM_NEWLINK, wanted)
    except NetlinkError as error:
        if error.code != errno.ENODEV:
            raise
        return False
    return True


def set_up(netlink: Netlink, index: int, mtu: int) -> None:
    """Set an interface's MTU, and bring it up."""
    wanted = _link(IFLA_MTU=mtu)
    wanted["index"] = index
    wanted["flags"] = wanted["change"] = IFF_UP
    netlink.request(RTM_NEWLINK, wanted)


def addresses(netlink: Netlink, index: int) -> list[Message]:
    """The addresses of an interface."""
    wanted = ifaddrmsg()
    wanted["family"], wanted["index"] = socket.AF_UNSPEC, index
    return netlink.dump(RTM_GETADDR, wanted)


def routes(netlink: Netlink) -> list[Message]:
    """The routes of the main table, of all families."""
    wanted = rtmsg()
    wanted["family"] = socket.AF_UNSPEC
    wanted["attrs"] = [("RTA_TABLE", _TABLE_MAIN)]
    return netlink.dump(RTM_GETROUTE, wanted)


def add_ingress(netlink: Netlink, index: int) -> bool:
    """Add an ingress qdisc to an interface, for filters of arriving frames; False: it exists already."""
    try:
        netlink.request(RTM_NEWQDISC, _ingress(index, TCA_KIND="ingress"), _NEW)
    except NetlinkError as error:
        if error.code != errno.EEXIST:
            raise
        return False
    return True


def remove_ingress(netlink: Netlink, index: int) -> None:
    """Remove the ingress qdisc with its filters; a missing qdisc is no error."""
    try:
        netlink.request(RTM_DELQDISC, _ingress(index))
    except NetlinkError as error:
        if error.code not in (errno.ENOENT, errno.EINVAL):  # no ingress qdisc
            raise


def add_program(netlink: Netlink, index: int, name: str, program: int) -> None:
    """Let a program (a descriptor) decide about frames that arrive at an interface with an ingress qdisc."""
    options = {"attrs": [("TCA_BPF_FD", program), ("TCA_BPF_NAME", name), ("TCA_BPF_FLAGS", _BPF_DECIDES)]}
    wanted = _filter(index, TCA_KIND="bpf", TCA_OPTIONS=options)
    wanted["info"] = _INFO
    netlink.request(RTM_NEWTFILTER, wanted, _NEW)


def programs(netlink: Netlink, index: int) -> list[str]:
    """Names of the programs that decide about frames arriving at ``index``; "" for other filters."""
    found = []
    for message in netlink.dump(RTM_GETTFILTER, _filter(index)):
        # An entry without options stands for a whole priority.
        if (options := message.get_attr("TCA_OPTIONS")) is not None:
            is_program = message.get_attr("TCA_KIND") == "bpf"
            found.append(str(options.get_attr("TCA_BPF_NAME") or "") if is_program else "")
    return found


def _link(**attributes: object) -> Message:
    message = ifinfmsg()
    message["attrs"] = list(attributes.items())
    return message


def _ingress(index: int, **attributes: object) -> Message:
    message = tcmsg()
    message["index"], message["handle"], message["parent"] = index, _INGRESS, TC_H_INGRESS
    message["attrs"] = list(attributes.items())
    return message


def _filter(index: int, **attributes: object) -> Message:
    message = tcmsg()
    message["index"], message["parent"] = index, _INGRESS
    message["attrs"] = list(attributes.items())
    return message

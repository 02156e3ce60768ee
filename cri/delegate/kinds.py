"""The lists of RuntimeService: the key of their items, and the meaning of their filters.

Every list has its items in field 1 of the answer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass

from cri.state.records import has_id, has_labels
from daemonkit.faults import Invalid
from xenpod_proto.cri.v1 import runtime_pb2 as cri

# Any message of CRI, by method.
_Fields = Any

METHODS: dict[str, MethodDescriptor] = dict(cri.DESCRIPTOR.services_by_name["RuntimeService"].methods_by_name)
"""Every RPC of the service, by name."""


def request_type(method: str) -> type[Message]:
    """The class of a method's request."""
    return GetMessageClass(METHODS[method].input_type)


def response_type(method: str) -> type[Message]:
    """The class of a method's answer, or of a message in its stream."""
    return GetMessageClass(METHODS[method].output_type)


def parsed(method: str, kind: type[Message], untrusted: bytes) -> _Fields:
    """Decode a caller's request; Invalid: malformed."""
    try:
        return kind.FromString(untrusted)
    except DecodeError:
        raise Invalid(method, "", "the request is not CRI's") from None


@dataclass(frozen=True, slots=True)
class ListKind:
    """A list: the unary RPC ``method``, and the streaming RPC ``stream`` with the same items."""

    method: str
    stream: str
    key: Callable[[Any], str]
    """The id of an item, unique in the list."""
    pod: Callable[[Any], str] = lambda item: ""
    """The id of a container's pod; "" if the item does not name a pod."""
    pods: bool = True
    """Whether ``key`` is the id of a pod.  Otherwise the key is a container's id, or a name."""
    tracked: bool = False
    """Whether the kubelet learns from this list which items exist.  Lists of figures may be left out."""
    selects: Callable[[Any, Any], bool] = lambda item, asked: True
    """Whether a request's filter selects an item."""

    @property
    def patience(self) -> int:
        """Deadline in multiples of ``delegate.timeout``: containerd takes 2 s for figures of 100 pods."""
        return 1 if self.tracked else 6

    @property
    def field(self) -> str:
        """The name of field 1 of the answer."""
        return METHODS[self.method].output_type.fields_by_number[1].name

    @property
    def stream_field(self) -> str:
        """The name of field 1 of a message of the stream."""
        return METHODS[self.stream].output_type.fields_by_number[1].name


def _pod_selected(item: cri.PodSandbox, asked: cri.PodSandboxFilter) -> bool:
    return (
        has_id(item.id, asked.id)
        and has_labels(item.labels, asked.label_selector)
        and (not asked.HasField("state") or asked.state.state == item.state)
    )


def _container_selected(item: cri.Container, asked: cri.ContainerFilter) -> bool:
    return (
        has_id(item.id, asked.id)
        and has_id(item.pod_sandbox_id, asked.pod_sandbox_id)
        and has_labels(item.labels, asked.label_selector)
        and (not asked.HasField("state") or asked.state.state == item.state)
    )


PODS = ListKind(
    "ListPodSandbox", "StreamPodSandboxes", lambda item: item.id, tracked=True, selects=_pod_selected
)
CONTAINERS = ListKind(
    "ListContainers",
    "StreamContainers",
    lambda item: item.id,
    pod=lambda item: item.pod_sandbox_id,
    pods=False,
    tracked=True,
    selects=_container_selected,
)
CONTAINER_STATS = ListKind(
    "ListContainerStats", "StreamContainerStats", lambda item: item.attributes.id, pods=False
)
POD_STATS = ListKind("ListPodSandboxStats", "StreamPodSandboxStats", lambda item: item.attributes.id)
POD_METRICS = ListKind("ListPodSandboxMetrics", "StreamPodSandboxMetrics", lambda item: item.pod_sandbox_id)
LISTS = (PODS, CONTAINERS, CONTAINER_STATS, POD_STATS, POD_METRICS)

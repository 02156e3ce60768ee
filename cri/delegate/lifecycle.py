"""RPCs that create, change and remove the delegate's pods and containers.

The delegate's last word takes over each answer.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from typing import Any, TypeAlias

import grpc.aio
from google.protobuf.message import DecodeError

from cri.delegate.cached_list import CachedList
from cri.delegate.config import DelegateConfig
from cri.delegate.kinds import METHODS, parsed, response_type
from cri.delegate.link import RUNTIME, Delegate, passed_on, remaining
from cri.delegate.owners import Ensure, Owner, Owners, check_namespace, pod_owner
from cri.delegate.routes import Answer, ById
from cri.state.list_capacity import ListCapacity, ListEntry, container_entry, entry_of, pod_entry
from daemonkit.faults import Broken
from xenpod_proto.cri.v1 import runtime_pb2 as cri

_Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"


class RoutedPod:
    """RunPodSandbox: the runtime handler and ``[delegate]`` choose the side of the pod."""

    def __init__(
        self, config: DelegateConfig, handlers: Collection[str], delegate: Delegate, servicer: Any,
        pods: Owners, last: CachedList, capacity: ListCapacity,
    ) -> None:  # fmt: skip
        self._config = config
        self._handlers = handlers
        self._delegate = delegate
        self._ours = servicer.RunPodSandbox
        self._pods = pods
        self._last = last
        self._capacity = capacity

    async def call(self, raw: bytes, context: _Context) -> Answer:
        """Run the pod on its side.  Denied: its namespace may not use the delegate."""
        request = parsed("RunPodSandbox", cri.RunPodSandboxRequest, raw)
        if pod_owner(request, self._handlers, self._config) is Owner.OURS:
            return await self._ours(request, context)  # type: ignore[no-any-return]
        check_namespace(request, self._config)
        if request.runtime_handler in self._handlers:
            request.runtime_handler = ""  # the delegate does not know ours
            raw = request.SerializeToString()
        name = request.config.metadata.name
        with self._capacity.making("RunPodSandbox", name, pod_entry(request.config)):
            return await self._run(request, raw, context)

    async def _run(self, request: Any, raw: bytes, context: _Context) -> bytes:
        answer = await self._delegate.call(
            RUNTIME + "RunPodSandbox", raw, remaining(context), passed_on(context)
        )
        pod_id = created_id("RunPodSandbox", answer, self._delegate, self._pods)
        config = request.config
        self._last.made(
            pod_id,
            cri.PodSandbox(
                id=pod_id,
                metadata=config.metadata,
                state=cri.SANDBOX_READY,
                created_at=time.time_ns(),
                labels=config.labels,
                annotations=config.annotations,
                runtime_handler=request.runtime_handler,
            ),
        )
        return answer


class RoutedContainer(ById):
    """CreateContainer: brings the image to the pod's side first."""

    def __init__(
        self, pods: Owners, delegate: Delegate, servicer: Any, containers: Owners, last: CachedList,
        last_pods: CachedList, capacity: ListCapacity, ensure: Ensure | None,
    ) -> None:  # fmt: skip
        super().__init__("CreateContainer", pods, delegate, servicer)
        self._containers = containers
        self._last = last
        self._last_pods = last_pods
        self._capacity = capacity
        self._ensure = ensure

    async def theirs(self, raw: bytes, context: _Context) -> bytes:
        request = parsed(self.method, cri.CreateContainerRequest, raw)
        pod = self._last_pods.items().get(request.pod_sandbox_id)
        entry = container_entry(pod.metadata.namespace if pod else "", request.config)
        with self._capacity.making(self.method, request.config.metadata.name, entry):
            return await super().theirs(raw, context)

    async def before(self, owner: Owner, request: Any) -> None:
        if self._ensure is not None:
            await self._ensure(owner, request)

    def after(self, wanted: str, request: Any, answer: bytes) -> None:
        container_id = created_id(self.method, answer, self._delegate, self._containers)
        config = request.config
        self._last.made(
            container_id,
            cri.Container(
                id=container_id,
                pod_sandbox_id=wanted,
                metadata=config.metadata,
                image=config.image,
                image_ref=config.image.image,
                state=cri.CONTAINER_CREATED,
                created_at=time.time_ns(),
                labels=config.labels,
                annotations=config.annotations,
            ),
        )


class Change(ById):
    """Starts, stops and removals: ``changed`` takes the id, and notes the change in the last word."""

    def __init__(
        self, method: str, owners: Owners, delegate: Delegate, servicer: Any, changed: Callable[[str], None]
    ) -> None:
        super().__init__(method, owners, delegate, servicer)
        self._changed = changed

    def after(self, wanted: str, request: Any, answer: bytes) -> None:
        self._changed(wanted)


def created_id(method: str, untrusted: bytes, delegate: Delegate, owners: Owners) -> str:
    """The id of the delegate's new pod or container: field 1 of its answer.

    Broken: the id is missing, or is one of ours.  A caller with our id would later stop a zone.
    """
    try:
        answer = response_type(method).FromString(untrusted)
    except DecodeError:
        raise Broken(method, delegate.endpoint, "its answer is not CRI's") from None
    found: str = getattr(answer, METHODS[method].output_type.fields_by_number[1].name)
    if not found or owners.ours(found):
        raise Broken(method, delegate.endpoint, f"its answer has the id {found!r:.80}, which cannot be")
    return found


def listed_entries(pods: CachedList, containers: CachedList) -> list[ListEntry]:
    """The delegate's part of the lists, as last known."""
    known = pods.items()
    found = [entry_of(pod.metadata.namespace, pod) for pod in known.values()]
    for item in containers.items().values():
        pod = known.get(item.pod_sandbox_id)
        found.append(entry_of(pod.metadata.namespace if pod else "", item))
    return found

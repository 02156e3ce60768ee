"""RuntimeService in front of two runtimes: assembles the routes, and runs the delegate's follower."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from cri.delegate.cached_list import CachedList
from cri.delegate.config import DelegateConfig
from cri.delegate.follow import DelegateFollower
from cri.delegate.kinds import CONTAINERS, LISTS, METHODS, POD_METRICS, PODS, ListKind, parsed
from cri.delegate.lifecycle import Change, RoutedContainer, RoutedPod, listed_entries
from cri.delegate.link import Delegate, error_text
from cri.delegate.lists import MergedList
from cri.delegate.metric_labels import MetricLabels
from cri.delegate.owners import Ensure, Owners, OwnRecords
from cri.delegate.routes import (
    CONTAINER_CALLS,
    POD_CALLS,
    Behaviour,
    ById,
    StreamBehaviour,
    generic,
    streaming,
    unary,
)
from cri.delegate.status import MergedStatus
from cri.delegate.stored import DelegateFacts
from cri.delegate.streams.event_stream import MergedEvents
from cri.delegate.streams.lists import MergedListStream
from cri.delegate.streams.missed import MissedEvents
from cri.state.list_capacity import ListCapacity
from daemonkit.convert import WrongKey
from daemonkit.faults import Fault, Refused
from daemonkit.logs import fields
from daemonkit.namespaces import matches
from daemonkit.rpc.interceptors import clip
from xenpod_proto.cri.v1 import runtime_pb2 as cri

log = logging.getLogger(__name__)

_SHOWN_NAMESPACES = 32
"""Maximum of namespaces in one line of the log."""
_Handlers = dict[str, "grpc.RpcMethodHandler[Any, Any]"]


class Delegation:
    """Everything that serves RuntimeService with a delegate.

    ``servicer``: our own RuntimeService; ``handlers``: the names of our runtime handlers.
    """

    def __init__(
        self,
        config: DelegateConfig,
        servicer: Any,
        handlers: Collection[str],
        sandboxes: OwnRecords,
        containers: OwnRecords,
        state_dir: Path,
        capacity: ListCapacity,
    ) -> None:
        self.delegate = Delegate(config)
        self._config = config
        self._servicer = servicer
        self._handlers = handlers
        self._stored = DelegateFacts(state_dir, self.delegate)
        self._capacity = capacity
        self._last = {kind: CachedList(kind, self.delegate, config.keep) for kind in (PODS, CONTAINERS)}
        self.pods = Owners("pod sandbox", sandboxes, self._last[PODS].knows, self._begins(PODS))
        self.containers = Owners(
            "container", containers, self._last[CONTAINERS].knows, self._begins(CONTAINERS)
        )
        capacity.others = partial(listed_entries, self._last[PODS], self._last[CONTAINERS])
        self.ensure: Ensure | None = None
        """Set before ``service`` is called."""
        self._lists = {kind: self._list(kind) for kind in LISTS}
        tracked = (self._lists[PODS], self._lists[CONTAINERS])
        self.follower = DelegateFollower(self.delegate, tracked, self._stored, self._warn_of_namespaces)
        self._outside: list[str] = []

    def service(self) -> grpc.GenericRpcHandler[Any, Any]:
        """The RuntimeService to add to a server."""
        status = MergedStatus(self._config, self.delegate, self._servicer, self._stored, self._handlers)
        labels = MetricLabels(self.delegate, self._servicer)
        self._lists[POD_METRICS].adapt = labels.adapted
        behaviours: dict[str, Behaviour] = {
            **{method: self._by_id(method).call for method in (*POD_CALLS, *CONTAINER_CALLS)},
            **{kind.method: one.answer for kind, one in self._lists.items()},
            "RunPodSandbox": RoutedPod(
                self._config,
                self._handlers,
                self.delegate,
                self._servicer,
                self.pods,
                self._last[PODS],
                self._capacity,
            ).call,
            "Status": status.status,
            "RuntimeConfig": status.runtime_config,
            "UpdateRuntimeConfig": status.update,
            "ListMetricDescriptors": labels.descriptors,
            "Version": self._version,
        }
        missed = MissedEvents(self.delegate, self._lists[PODS], self._lists[CONTAINERS])
        events = MergedEvents(
            self.delegate, self._servicer.GetContainerEvents, self.pods, self.containers, missed
        )
        streams: dict[str, StreamBehaviour] = {
            **{kind.stream: self._stream(one) for kind, one in self._lists.items()},
            "GetContainerEvents": events.events,
        }
        handlers: _Handlers = {
            name: streaming(streams[name])
            if method.server_streaming
            else unary(behaviours[name], getattr(self._servicer, name))
            for name, method in METHODS.items()
        }
        return generic(handlers)

    def _by_id(self, method: str) -> ById:
        changed: Callable[[str], None]
        last, owners = self._last[CONTAINERS], self.pods if method in POD_CALLS else self.containers
        match method:
            case "CreateContainer":
                return RoutedContainer(
                    owners,
                    self.delegate,
                    self._servicer,
                    self.containers,
                    last,
                    self._last[PODS],
                    self._capacity,
                    self.ensure,
                )
            case "StartContainer":
                changed = partial(last.became, state=cri.CONTAINER_RUNNING)
            case "StopContainer":
                changed = partial(last.became, state=cri.CONTAINER_EXITED)
            case "StopPodSandbox":
                changed = self._pod_stopped
            case "RemovePodSandbox":
                changed = self._pod_gone
            case "RemoveContainer":
                changed = last.gone
            case _:
                return ById(method, owners, self.delegate, self._servicer)
        return Change(method, owners, self.delegate, self._servicer, changed)

    def _warn_of_namespaces(self) -> None:
        """Log, once for each set, namespaces whose pods in the delegate may not start there again."""
        pods = self._last[PODS].items().values()
        names = {pod.metadata.namespace for pod in pods if pod.state == cri.SANDBOX_READY}
        outside = sorted(clip(name) for name in names if not matches(self._config.namespaces, name))
        if outside and outside != self._outside:
            log.warning(
                "pods of these namespaces run in the delegate, and new ones would be refused: add them"
                " to [delegate] namespaces in cri.toml, or give the pods a RuntimeClass of zones",
                extra=fields(namespaces=", ".join(outside[:_SHOWN_NAMESPACES]), count=len(outside)),
            )
        self._outside = outside

    def _pod_stopped(self, pod_id: str) -> None:
        self._last[PODS].became(pod_id, cri.SANDBOX_NOTREADY)
        self._last[CONTAINERS].became_with(pod_id, cri.CONTAINER_EXITED)

    def _pod_gone(self, pod_id: str) -> None:
        self._last[PODS].gone(pod_id)
        self._last[CONTAINERS].gone_with(pod_id)

    def _list(self, kind: ListKind) -> MergedList:
        ours: Callable[[Any, Any], Any] = getattr(self._servicer, kind.method)
        return MergedList(kind, self.delegate, ours, self.pods, self.containers, self._last.get(kind))

    def _stream(self, merged: MergedList) -> StreamBehaviour:
        ours: Callable[[Any, Any], Any] = getattr(self._servicer, merged.kind.stream)
        return MergedListStream(merged, self.delegate, ours).answers

    def _begins(self, kind: ListKind) -> Callable[[str], Awaitable[bool]]:
        return lambda prefix: self._lists[kind].begins(prefix)

    async def _version(self, raw: bytes, context: Any) -> Any:
        """Our own Version, since the kubelet and crictl talk to us."""
        return await self._servicer.Version(parsed("Version", cri.VersionRequest, raw), context)


@contextlib.asynccontextmanager
async def delegating(delegation: Delegation) -> AsyncIterator[None]:
    """Follow the delegate while the block runs; the background task looks for an absent delegate.

    WrongKey: the delegate is itself a xenpod-cri.
    """
    delegate = delegation.delegate
    async with contextlib.AsyncExitStack() as undo:
        undo.push_async_callback(delegate.close)
        try:
            await delegate.introduce(delegate.timeout)
            await delegation.follower.look()
        except Refused as fault:
            raise WrongKey("delegate.endpoint", error_text(fault)) from fault
        except (grpc.aio.AioRpcError, Fault) as error:
            log.warning("serving before the delegate answers", extra=fields(cause=error_text(error)))
            delegate.lost(error_text(error))
        async with asyncio.TaskGroup() as group:  # a failed follower ends the daemon
            follower = group.create_task(delegation.follower.run(), name="the delegate's follower")
            try:
                yield
            finally:
                follower.cancel()

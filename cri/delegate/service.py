"""RuntimeService in front of two runtimes: assembles the routes, and runs what they need."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Collection
from typing import Any

import grpc
import grpc.aio

from cri.delegate.config import DelegateConfig
from cri.delegate.follow import DelegateFollower
from cri.delegate.kinds import CONTAINERS, LISTS, METHODS, PODS, ListKind, parsed, request_type
from cri.delegate.last_word import LastWord
from cri.delegate.lifecycle import CreateContainer, Removal, RunPod
from cri.delegate.link import Delegate, said
from cri.delegate.lists import MergedList
from cri.delegate.owners import Ensure, Owners, OwnRecords
from cri.delegate.routes import CONTAINER_CALLS, POD_CALLS, Behaviour, ById, generic, unary
from cri.delegate.status import MergedStatus
from daemonkit.convert import WrongKey
from daemonkit.faults import Refused

_Handlers = dict[str, "grpc.RpcMethodHandler[Any, Any]"]


class Delegation:
    """What of a daemon with a delegate is for its assembly, and for images."""

    def __init__(
        self,
        config: DelegateConfig,
        servicer: Any,
        handlers: Collection[str],
        sandboxes: OwnRecords,
        containers: OwnRecords,
    ) -> None:
        self.delegate = Delegate(config)
        self._config = config
        self._servicer = servicer
        self._handlers = handlers
        self._last = {kind: LastWord(kind, config.endpoint, config.keep) for kind in (PODS, CONTAINERS)}
        self.pods = Owners("pod sandbox", sandboxes, self._last[PODS])
        self.containers = Owners("container", containers, self._last[CONTAINERS])
        self.ensure: Ensure | None = None
        """Set before ``service`` is called."""
        self._lists = {kind: self._list(kind) for kind in LISTS}
        self.follower = DelegateFollower(self.delegate, (self._lists[PODS], self._lists[CONTAINERS]))

    def service(self) -> grpc.GenericRpcHandler[Any, Any]:
        """RuntimeService, for a server."""
        status = MergedStatus(self._config, self.delegate, self._servicer.Status)
        behaviours: dict[str, Behaviour] = {
            **{method: self._by_id(method).call for method in (*POD_CALLS, *CONTAINER_CALLS)},
            **{kind.method: one.answer for kind, one in self._lists.items()},
            "RunPodSandbox": RunPod(
                self._config, self._handlers, self.delegate, self._servicer, self.pods, self._last[PODS]
            ).call,
            "Status": status.status,
            "RuntimeConfig": status.runtime_config,
        }
        handlers: _Handlers = {
            name: unary(behaviours.get(name) or self._ours(name), getattr(self._servicer, name))
            for name, method in METHODS.items()
            if not method.server_streaming
        }
        return generic(handlers)

    def _by_id(self, method: str) -> ById:
        last, owners = self._last[CONTAINERS], self.pods if method in POD_CALLS else self.containers
        match method:
            case "CreateContainer":
                return CreateContainer(
                    owners, self.delegate, self._servicer, self.containers, last, self.ensure
                )
            case "RemovePodSandbox" | "RemoveContainer":
                gone = self._pod_gone if method in POD_CALLS else last.gone
                return Removal(method, owners, self.delegate, self._servicer, gone)
        return ById(method, owners, self.delegate, self._servicer)

    def _pod_gone(self, pod_id: str) -> None:
        self._last[PODS].gone(pod_id)
        self._last[CONTAINERS].gone_with(pod_id)

    def _list(self, kind: ListKind) -> MergedList:
        ours: Callable[[Any, Any], Any] = getattr(self._servicer, kind.method)
        return MergedList(kind, self.delegate, ours, self.pods, self.containers, self._last.get(kind))

    def _ours(self, method: str) -> Behaviour:
        """An RPC that is about this runtime alone."""
        ours, kind = getattr(self._servicer, method), request_type(method)

        async def call(raw: bytes, context: Any) -> Any:
            return await ours(parsed(method, kind, raw), context)

        return call


@contextlib.asynccontextmanager
async def delegating(delegation: Delegation) -> AsyncIterator[None]:
    """Follow the delegate while the block runs.  One that is not there is waited for in the background.

    WrongKey when it is a xenpod-cri.
    """
    delegate = delegation.delegate
    async with contextlib.AsyncExitStack() as undo:
        undo.push_async_callback(delegate.close)
        try:
            await delegation.follower.look()
        except Refused as fault:
            raise WrongKey("delegate.endpoint", said(fault)) from fault
        follower = asyncio.create_task(delegation.follower.run(), name="the delegate's follower")
        undo.push_async_callback(_ended, follower)
        yield


async def _ended(task: asyncio.Task[None]) -> None:
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task

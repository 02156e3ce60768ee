"""Status of both runtimes, and what else is said of the node as a whole."""

from __future__ import annotations

import json
import logging
from collections.abc import Collection
from typing import Any, TypeAlias

import grpc
import grpc.aio
from google.protobuf.message import DecodeError, Message

from cri.delegate.config import DelegateConfig, Unnamed
from cri.delegate.kinds import parsed
from cri.delegate.link import RUNTIME, CallerLeft, Delegate, PendingCall, passed_on, remaining, said
from cri.delegate.lists import lacks
from cri.delegate.met import Met
from cri.delegate.untrusted import read
from daemonkit.faults import Broken, Fault
from daemonkit.interceptors import clip
from xenpod_proto.cri.v1 import runtime_pb2 as cri

_Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"

log = logging.getLogger(__name__)

CONDITION = "DelegateReady"
_HANDLERS = 256
_CONFIG_BYTES = 4096
_INFO_BYTES = 8 * 1024 * 1024
INFO = "delegate."
"""Before the names of the delegate's verbose info."""


class MergedStatus:
    """Status, RuntimeConfig, UpdateRuntimeConfig.

    RuntimeReady and NetworkReady stay those of zones.  The kubelet takes a node without either for NotReady:
    it then evicts pods, zones too, and without the network starts none but those of the host's.  So the
    delegate's have a condition of their own, which the kubelet does not act upon.
    """

    def __init__(
        self,
        config: DelegateConfig,
        delegate: Delegate,
        servicer: Any,
        met: Met,
        handlers: Collection[str],
    ) -> None:
        self._default = config.default
        self._delegate = delegate
        self._servicer = servicer
        self._met = met
        self._handlers = handlers
        self._heard: cri.StatusResponse | None = None

    async def status(self, raw: bytes, context: _Context) -> cri.StatusResponse:
        """Ours, with the delegate's part in it; never later than its deadline."""
        request = parsed("Status", cri.StatusRequest, raw)
        metadata, pending, trouble = passed_on(context), None, self._delegate.trouble
        if not trouble:
            timeout = self._delegate.reads(remaining(context))
            pending = self._delegate.begin(RUNTIME + "Status", raw, timeout, metadata)
        try:
            reply: cri.StatusResponse = await self._servicer.Status(request, context)
        except BaseException:
            if pending is not None:
                pending.cancel()
            raise
        theirs = None
        if pending is not None:
            theirs, trouble = await self._theirs(pending)
        reply.status.conditions.append(_condition(theirs, trouble))
        self._add_handlers(reply)
        if request.verbose:
            state = {"endpoint": self._delegate.endpoint, "error": trouble}
            reply.info["delegate"] = json.dumps(state)
            if theirs is not None and theirs.ByteSize() <= _INFO_BYTES:
                reply.info.update({INFO + name: value for name, value in theirs.info.items()})
        return reply

    async def runtime_config(self, raw: bytes, context: _Context) -> bytes:
        """The delegate's cgroup driver: the kubelet makes the cgroups for its pods; zones have none.

        While the delegate is away, as it last said.  A delegate without this method has its caller go by its
        own configuration, as it would without us.
        """
        try:
            timeout = self._delegate.reads(remaining(context))
            answer = await self._delegate.call(RUNTIME + "RuntimeConfig", raw, timeout, passed_on(context))
        except (grpc.aio.AioRpcError, Fault) as error:
            if lacks(error) or not self._met.runtime_config:
                raise
            return self._met.runtime_config
        if is_runtime_config(answer):
            self._met.note(answer)
        return answer

    async def update(self, raw: bytes, context: _Context) -> bytes | Message:
        """UpdateRuntimeConfig, which has the pods' addresses: ours, then the delegate's; it may have none."""
        request = parsed("UpdateRuntimeConfig", cri.UpdateRuntimeConfigRequest, raw)
        metadata = passed_on(context)
        mine: Message = await self._servicer.UpdateRuntimeConfig(request, context)
        try:
            return await self._delegate.call(
                RUNTIME + "UpdateRuntimeConfig", raw, self._delegate.reads(remaining(context)), metadata
            )
        except grpc.aio.AioRpcError as error:
            if lacks(error):
                return mine
            raise

    async def _theirs(self, pending: PendingCall) -> tuple[cri.StatusResponse | None, str]:
        """Its Status, or what is wrong with it."""
        try:
            _, reply = read(cri.StatusResponse, await pending.answer())
        except DecodeError:
            return None, f"{self._delegate.endpoint}: its Status is not CRI's"
        except (grpc.aio.AioRpcError, Fault) as error:
            if isinstance(error, Fault) and not isinstance(error, Broken | CallerLeft):
                self._delegate.lost(said(error))
            return None, said(error)
        self._heard = reply
        return reply, ""

    def _add_handlers(self, reply: cri.StatusResponse) -> None:
        """Handlers of both, ours first; "" is that of who gets pods that name none.

        Those of a delegate that is away stay as it last said: they are its configuration.
        """
        theirs = self._heard
        if self._default is Unnamed.DELEGATE:
            kept = [one for one in reply.runtime_handlers if one.name]
            del reply.runtime_handlers[:]
            reply.runtime_handlers.extend(kept)
        if theirs is None:
            return
        known = {*self._handlers, *(one.name for one in reply.runtime_handlers)}
        for one in theirs.runtime_handlers[:_HANDLERS]:
            if one.name not in known and (one.name or self._default is Unnamed.DELEGATE):
                known.add(one.name)
                reply.runtime_handlers.append(one)
        features = reply.features
        features.supplemental_groups_policy &= theirs.features.supplemental_groups_policy
        # No zone has the host's network, so this is about the delegate's pods alone.
        features.user_namespaces_host_network = theirs.features.user_namespaces_host_network


def is_runtime_config(untrusted: bytes) -> bool:
    """Whether it is RuntimeConfig's answer with a cgroup driver in it, and as short as such are."""
    try:
        answer = cri.RuntimeConfigResponse.FromString(untrusted)
    except DecodeError:
        return False
    return answer.HasField("linux") and len(untrusted) <= _CONFIG_BYTES


def _condition(theirs: cri.StatusResponse | None, trouble: str) -> cri.RuntimeCondition:
    """Whether the delegate answers, and says that it is ready, too."""
    if theirs is None:
        return cri.RuntimeCondition(type=CONDITION, reason="DelegateNotReachable", message=clip(trouble))
    for one in theirs.status.conditions:
        if one.type in ("RuntimeReady", "NetworkReady") and not one.status:
            message = clip(f"{one.type}: {one.reason}: {one.message}")
            return cri.RuntimeCondition(type=CONDITION, reason=f"Delegate{one.type}False", message=message)
    return cri.RuntimeCondition(type=CONDITION, status=True)

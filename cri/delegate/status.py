"""RPCs about the node as a whole: Status, RuntimeConfig, UpdateRuntimeConfig of both runtimes."""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any, TypeAlias

import grpc
import grpc.aio
from google.protobuf.message import DecodeError, Message

from cri.delegate.config import DelegateConfig, Unnamed
from cri.delegate.kinds import parsed
from cri.delegate.link import RUNTIME, CallerLeft, Delegate, PendingCall, error_text, passed_on, remaining
from cri.delegate.lists import lacks
from cri.delegate.stored import DelegateFacts
from cri.delegate.untrusted import read_message
from daemonkit.faults import Broken, Fault
from daemonkit.rpc.interceptors import clip
from xenpod_proto.cri.v1 import runtime_pb2 as cri

_Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"

CONDITION = "DelegateReady"
_MOST_HANDLERS = 256
_CONFIG_BYTES = 4096
_INFO_BYTES = 8 * 1024 * 1024
INFO = "delegate."
"""Prefix of the keys of the delegate's verbose info."""


class MergedStatus:
    """Answers Status, RuntimeConfig and UpdateRuntimeConfig for both runtimes.

    RuntimeReady and NetworkReady are only about zones.  If either is false, the kubelet reports the node as
    NotReady: all pods are evicted, including zones, and without NetworkReady only pods on the host's network
    start.  The delegate's conditions are therefore shown as DelegateReady, a condition of our own without
    effect on the kubelet.
    """

    def __init__(
        self,
        config: DelegateConfig,
        delegate: Delegate,
        servicer: Any,
        stored: DelegateFacts,
        handlers: Collection[str],
    ) -> None:
        self._default = config.default
        self._delegate = delegate
        self._servicer = servicer
        self._stored = stored
        self._handlers = handlers
        self._heard: cri.StatusResponse | None = None

    async def status(self, raw: bytes, context: _Context) -> cri.StatusResponse:
        """Our Status with the delegate's part added, within the delegate's deadline."""
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
        too_large = "; ".join(self._delegate.too_large.values())
        reply.status.conditions.append(_condition(theirs, trouble, too_large))
        self._add_handlers(reply)
        if request.verbose:
            state = {"endpoint": self._delegate.endpoint, "error": trouble}
            reply.info["delegate"] = json.dumps(state)
            if theirs is not None and theirs.ByteSize() <= _INFO_BYTES:
                reply.info.update({INFO + name: value for name, value in theirs.info.items()})
        return reply

    async def runtime_config(self, raw: bytes, context: _Context) -> bytes:
        """The delegate's cgroup driver: the kubelet makes cgroups for the delegate's pods, and none for
        zones.

        While the delegate is away, its last answer counts.  If the delegate lacks the method, its error is
        passed on, and the kubelet falls back to its own configuration, as it would without us.
        """
        try:
            timeout = self._delegate.reads(remaining(context))
            answer = await self._delegate.call(RUNTIME + "RuntimeConfig", raw, timeout, passed_on(context))
        except (grpc.aio.AioRpcError, Fault) as error:
            if lacks(error) or not self._stored.runtime_config:
                raise
            return self._stored.runtime_config
        if is_runtime_config(answer):
            self._stored.note(answer)
        return answer

    async def update(self, raw: bytes, context: _Context) -> bytes | Message:
        """UpdateRuntimeConfig with the pods' address range: to us, then to the delegate.

        A delegate may lack the method.
        """
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
        """The delegate's Status and "", or None and the trouble."""
        try:
            _, reply = read_message(cri.StatusResponse, await pending.answer())
        except DecodeError:
            return None, f"{self._delegate.endpoint}: its Status is not CRI's"
        except (grpc.aio.AioRpcError, Fault) as error:
            if isinstance(error, Fault) and not isinstance(error, Broken | CallerLeft):
                self._delegate.lost(error_text(error))
            return None, error_text(error)
        self._heard = reply
        return reply, ""

    def _add_handlers(self, reply: cri.StatusResponse) -> None:
        """List the handlers of both, ours first; "" is the default handler of the default side.

        While the delegate is away, its last handlers count: handlers are configuration, and do not go away.
        """
        theirs = self._heard
        if self._default is Unnamed.DELEGATE:
            kept = [one for one in reply.runtime_handlers if one.name]
            del reply.runtime_handlers[:]
            reply.runtime_handlers.extend(kept)
        if theirs is None:
            return
        known = {*self._handlers, *(one.name for one in reply.runtime_handlers)}
        for one in theirs.runtime_handlers[:_MOST_HANDLERS]:
            if one.name not in known and (one.name or self._default is Unnamed.DELEGATE):
                known.add(one.name)
                reply.runtime_handlers.append(one)
        features = reply.features
        features.supplemental_groups_policy &= theirs.features.supplemental_groups_policy
        # No zone has the host's network: the value is about the delegate's pods.
        features.user_namespaces_host_network = theirs.features.user_namespaces_host_network


def is_runtime_config(untrusted: bytes) -> bool:
    """Whether the bytes are an answer to RuntimeConfig with a cgroup driver, of reasonable length."""
    try:
        answer = cri.RuntimeConfigResponse.FromString(untrusted)
    except DecodeError:
        return False
    return answer.HasField("linux") and len(untrusted) <= _CONFIG_BYTES


def _condition(theirs: cri.StatusResponse | None, trouble: str, too_large: str) -> cri.RuntimeCondition:
    """The condition DelegateReady: true if the delegate answers, calls itself ready, and can be listed."""
    if theirs is None:
        return cri.RuntimeCondition(type=CONDITION, reason="DelegateNotReachable", message=clip(trouble))
    if too_large:
        return cri.RuntimeCondition(type=CONDITION, reason="DelegateListTooLarge", message=clip(too_large))
    for one in theirs.status.conditions:
        if one.type in ("RuntimeReady", "NetworkReady") and not one.status:
            message = clip(f"{one.type}: {one.reason}: {one.message}")
            return cri.RuntimeCondition(type=CONDITION, reason=f"Delegate{one.type}False", message=message)
    return cri.RuntimeCondition(type=CONDITION, status=True)

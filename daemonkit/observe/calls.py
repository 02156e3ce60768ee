"""Observes the calls of a gRPC server: counts, times and traces them, and writes changing calls to the audit
log.
"""

from __future__ import annotations

import re
import time
from collections.abc import AsyncIterable, AsyncIterator
from contextlib import AbstractContextManager
from typing import Any

from google.protobuf import descriptor_pool, message_factory
from google.protobuf.descriptor import Descriptor
from google.protobuf.message import DecodeError, Message

from daemonkit.observe import metrics, traces
from daemonkit.observe.audit.log import AuditLog
from daemonkit.observe.audit.redaction import ids, redacted
from daemonkit.observe.callers import NOBODY, Caller, Callers

_Context = Any  # grpc.aio's own is generic over messages
_READING = re.compile(r"(Get|List|Stream|Wait|Watch)\w*|\w*(Status|Stats|Info|Facts|Console)|Version|Inspect")
"""Names of RPCs that change nothing; others may be marked ``read_only``."""


class CallObserver:
    """Observes a server's calls."""

    def __init__(self, audit: AuditLog | None = None) -> None:
        self.audit = audit
        self.callers = Callers() if audit is not None else None
        """Who is behind each connection, if anybody asks."""

    def method(self, full_name: str, *, timed: bool, reads: bool) -> ObservedMethod:
        """An RPC.  ``timed``: whether to measure the time; a stream's time is up to its client."""
        return ObservedMethod(self, full_name, timed=timed, reads=reads)


class ObservedMethod:
    """An RPC of a server."""

    def __init__(self, observer: CallObserver, full_name: str, *, timed: bool, reads: bool) -> None:
        """``full_name`` in gRPC's form: ``/runtime.v1.RuntimeService/Version``."""
        self.full_name = full_name
        service, _, rpc = full_name.strip("/").rpartition("/")
        self.name = f"{service.rpartition('.')[2]}.{rpc}"
        """Short, for people: ``RuntimeService.Version``."""
        self.labels = (service, rpc)
        self.seconds = metrics.CALL_SECONDS.labels(*self.labels) if timed else None
        self.audit = None if reads or _READING.fullmatch(rpc) else observer.audit
        self._callers = observer.callers
        self._types = _types(service, rpc)

    def begin(self, request: Any, context: _Context) -> ObservedCall:
        """A call begins; the caller reports its end.  ``request``: a message, or an iterator of messages."""
        call = ObservedCall(self)
        if self.audit is not None:
            call.caller = self._callers.of(context.peer()) if self._callers is not None else NOBODY
            if not isinstance(request, AsyncIterable):
                call.asked(request)
        return call

    def parsed(self, message: Any, *, reply: bool = False) -> Message | None:
        """A message, decoded if necessary; None: unreadable."""
        if isinstance(message, Message):
            return message
        if self._types is None or not isinstance(message, bytes):
            return None
        try:
            return message_factory.GetMessageClass(self._types[reply]).FromString(message)
        except DecodeError:
            return None


class ObservedCall:
    """A call under way."""

    __slots__ = ("_about", "_ended", "_pod", "_said", "begun", "caller", "method")

    def __init__(self, method: ObservedMethod) -> None:
        self.method = method
        self.begun = time.monotonic()
        self.caller: Caller = NOBODY
        self._pod = ""
        self._about: Message | None = None
        self._said: dict[str, object] = {}
        self._ended = False
        metrics.CALLS_OPEN.inc()

    def span(self, context: _Context) -> AbstractContextManager[object]:
        """A block for the call's work, as a span of its trace."""
        metadata: traces.Metadata | None = context.invocation_metadata()
        return traces.serving_span(self.method.full_name, metadata)

    def asked(self, request: Any) -> None:
        """Record the request for the audit log, and its pod, before the pod may be gone."""
        audit = self.method.audit
        message = self.method.parsed(request)
        if audit is None or message is None:
            return
        self._said["request"] = redacted(message, commands=audit.commands)
        self._about = message
        self._pod = _pod(audit, message)

    async def first(self, requests: AsyncIterable[Any]) -> AsyncIterator[Any]:
        """The same requests; records the first, because it names the subject."""
        noted = False
        async for request in requests:
            if not noted:
                self.asked(request)
                noted = True
            yield request

    def replied(self, reply: Any) -> None:
        """Record the ids in a reply."""
        if self.method.audit is not None and (message := self.method.parsed(reply, reply=True)) is not None:
            self._said["reply"] = ids(message)

    def ended(self, code: str, error: BaseException | None = None) -> None:
        """The call has ended with a status, or a word for an end without status.  May be repeated."""
        if self._ended:
            return
        self._ended = True
        seconds = time.monotonic() - self.begun
        metrics.CALLS_OPEN.dec()
        metrics.CALLS.labels(*self.method.labels, code).inc()
        if error is not None:
            metrics.ERRORS.labels(type(error).__name__).inc()
        if self.method.seconds is not None:
            self.method.seconds.observe(seconds)
        if self.method.audit is not None:
            rpc = self.method.full_name.strip("/")
            if self._about is not None and not self._pod:  # a pod made by this call
                self._pod = _pod(self.method.audit, self._about)
            self.method.audit.add(rpc, self.caller, self._pod, self._said, code, seconds)


def _types(service: str, rpc: str) -> tuple[Descriptor, Descriptor] | None:
    """The messages of an RPC; None: its contract is not loaded."""
    try:
        found = descriptor_pool.Default().FindServiceByName(service).methods_by_name[rpc]
    except KeyError:
        return None
    return found.input_type, found.output_type


def _pod(audit: AuditLog, message: Message) -> str:
    """The pod of a request: by an id, or by the kubelet's name in a configuration."""
    for one in ids(message).values():
        if pod := audit.pod_of(one):
            return pod
    for field, value in message.ListFields():
        if field.name == "start" and isinstance(value, Message):
            return _pod(audit, value)
        if field.name in ("config", "sandbox_config"):
            named = getattr(value, "metadata", None)
            if name := getattr(named, "name", ""):
                return f"{getattr(named, 'namespace', '')}/{name}"
    return ""

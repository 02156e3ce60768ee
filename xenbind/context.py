"""A libxl context.  Only one thread at a time may use it; libxl serialises nothing between contexts.

libxl reaps only its own children (selective reaping, see binding.c).  The application must therefore not
handle SIGCHLD itself, and must wait for its own children by pid, as in asyncio's watchers with a thread or a
pidfd for each child.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType

from xenbind import errors
from xenbind.raw import CData, ffi, lib
from xenbind.xenstore import check_served

_LOG_BYTES = 4096
log = logging.getLogger(__name__)


class Context:
    """An open context; errors of libxl become :class:`errors.XenError` with libxl's log."""

    def __init__(self) -> None:
        """XenError: no Xen.  StoreError: xenstored is dead.  Unavailable: no binding."""
        check_served()
        self.binding: CData = lib.binding_new()
        if self.binding == ffi.NULL:
            raise MemoryError("binding_new")
        try:
            self.check(
                "libxl_ctx_alloc", lib.binding_open(self.binding), "(does this kernel run on Xen as dom0?)"
            )
        except BaseException:
            self.close()
            raise
        self.ctx: CData = lib.binding_ctx(self.binding)

    def call(self, function: str, *arguments: object, subject: str = "") -> int:
        """Call a function of libxl with this context before ``arguments``; raise for a negative result."""
        return self.check(function, getattr(lib, function)(self.ctx, *arguments), subject)

    def check(self, name: str, code: int, subject: str = "") -> int:
        """Raise the error for a negative ``code``; otherwise log libxl's warnings."""
        detail = self.take_log()
        if code < 0:
            raise errors.of(name, code, subject, detail)
        if detail:
            log.debug("%s %s: %s", name, subject, detail.strip())
        if disaster := lib.binding_disaster(self.binding):
            raise errors.XenError(
                name, lib.ERROR_FAIL, subject, f"libxl lost track of events (errno {disaster})"
            )
        return code

    def take_log(self) -> str:
        """libxl's warnings and errors since the last call, at most 4 KiB."""
        buffer = ffi.new("char[]", _LOG_BYTES)
        length = lib.binding_take_log(self.binding, buffer, _LOG_BYTES)
        return bytes(ffi.buffer(buffer, length)).decode(errors="replace")

    @property
    def usable(self) -> bool:
        """Whether the context is open, and libxl has not lost track of its events."""
        return self.binding is not None and not lib.binding_disaster(self.binding)

    def close(self) -> None:
        """Free the context.  Idempotent.  No call may be under way."""
        binding, self.binding = self.binding, None
        if binding is not None:
            lib.binding_free(binding)

    def __enter__(self) -> Context:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


@contextmanager
def struct(kind: str) -> Iterator[CData]:
    """An initialised struct of libxl; the memory of its members is freed at the end."""
    value = ffi.new(f"{kind} *")
    getattr(lib, f"{kind}_init")(value)
    try:
        yield value
    finally:
        getattr(lib, f"{kind}_dispose")(value)

"""Ends of domains, from libxl's events; uses a separate context and thread."""

from __future__ import annotations

import logging
import os
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from xenbind import errors
from xenbind.context import Context
from xenbind.domain import Shutdown, info
from xenbind.raw import CData, ffi, lib

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class DomainEnd:
    """A watched domain shut down (with a ``reason``; the domain stays until destroyed), or is gone (None)."""

    domid: int
    user: int
    reason: Shutdown | None


class DeathWatcher:
    """Calls ``tell`` from its thread for every end of a watched domain.

    ``user`` is a number of the caller's choice, passed to ``tell``, because domain numbers wrap around. The
    same end may be reported twice. ``failed`` is called at most once, from the same thread, if no more events
    will come.
    """

    def __init__(self, tell: Callable[[DomainEnd], None], failed: Callable[[Exception], None]) -> None:
        self._tell = tell
        self._failed = failed
        self._context = Context()
        self._asked: deque[tuple[int, int] | None] = deque()
        self._watched: dict[int, CData] = {}  # by user
        self._wake_read, self._wake_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._thread = threading.Thread(target=self._run, name="xen-events", daemon=True)
        self._thread.start()

    def watch(self, domid: int, user: int) -> None:
        """Watch a domain, even after its end; may be called from any thread."""
        self._asked.append((domid, user))
        self._wake()

    def close(self) -> None:
        """Stop; waits for the thread."""
        self._asked.append(None)
        self._wake()
        self._thread.join()
        os.close(self._wake_read)
        os.close(self._wake_write)

    def _wake(self) -> None:
        try:
            os.write(self._wake_write, b"x")
        except BlockingIOError:
            pass  # the thread is awake already

    def _run(self) -> None:
        try:
            with self._context:
                self._serve()
        except Exception as error:  # report the thread's end, for any cause
            self._failed(error)

    def _serve(self) -> None:
        event = ffi.new("struct binding_event *")
        while True:
            code = lib.binding_next_event(self._context.binding, self._wake_read, event)
            self._context.check("libxl_event_check", code)
            if code == 1:
                self._take(event)
            elif not self._answer():
                return

    def _answer(self) -> bool:
        """Serve requests; False to stop."""
        try:
            os.read(self._wake_read, 4096)
        except BlockingIOError:
            pass
        while self._asked:
            asked = self._asked.popleft()
            if asked is None:
                return False
            self._enable(*asked)
        return True

    def _enable(self, domid: int, user: int) -> None:
        generator = ffi.new("libxl_evgen_domain_death **")
        try:
            self._context.call(
                "libxl_evenable_domain_death", domid, user, generator, subject=f"domain {domid}"
            )
        except errors.XenError as error:
            # The failure says nothing about the domain: xenstored may be gone.
            log.warning("cannot watch domain %d: %s", domid, error)
        else:
            self._watched[user] = generator[0]
        self._look(domid, user)

    def _look(self, domid: int, user: int) -> None:
        """libxl reports an earlier end only with some later event: better twice than too late."""
        try:
            found = info(self._context, domid)
        except errors.DomainNotFound:
            self._tell(DomainEnd(domid, user, None))
            return
        if found.shutdown:
            self._tell(DomainEnd(domid, user, found.shutdown_reason))

    def _take(self, event: CData) -> None:
        if event.type == lib.LIBXL_EVENT_TYPE_DOMAIN_SHUTDOWN:
            self._tell(DomainEnd(event.domid, event.user, Shutdown.of(event.shutdown_reason)))
        elif event.type == lib.LIBXL_EVENT_TYPE_DOMAIN_DEATH:
            generator = self._watched.pop(event.user, None)
            if generator is not None:
                lib.libxl_evdisable_domain_death(self._context.ctx, generator)
            self._tell(DomainEnd(event.domid, event.user, None))

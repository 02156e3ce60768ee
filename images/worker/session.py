"""One worker, as a thread of the daemon talks to it: requests go in, answers come out."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from daemonkit.faults import Broken, Fault
from images.bounds.cancel import CancelToken
from images.bounds.fields import FieldReader, Malformed
from images.worker import wire
from images.worker.frames import FAULT, JobOutcome

T = TypeVar("T")
_GONE = (BrokenPipeError, ConnectionResetError)


class Pipe:
    """One end of a pipe or socket, which may be closed twice."""

    def __init__(self, handle: int) -> None:
        self.handle = handle

    def close(self) -> None:
        """Close it, unless it is."""
        if self.handle >= 0:
            os.close(self.handle)
            self.handle = -1


class Worker:
    """A worker that was started for one job; it ends with close(), or with a fault."""

    def __init__(
        self,
        job: str,
        subject: str,
        source: Pipe,
        results: Pipe,
        asker: socket.socket,
        end_of: Callable[[str, str, int | None], Fault],
    ) -> None:
        """source: its input; asker: tells its status, and is shut down to have it killed.

        end_of: the fault for a worker that ended without a word, by job, subject, and status.
        """
        self._job = job
        self._subject = subject
        self._source = source
        self._results = results
        self._asker = asker
        self._end_of = end_of
        self._ended = False
        self._status: int | None = None

    def begin(self, job: Any) -> None:
        """Tell it the job."""
        self._tell(job, ())

    def ask(
        self,
        request: Any,
        token: CancelToken,
        outcome: JobOutcome,
        decode: Callable[[FieldReader], T],
        feed: Iterable[bytes] | None = None,
        files: Sequence[int] = (),
    ) -> T:
        """The answer to a request; blocks.  Faults: as LayerWorkers.run(), after which it has ended.

        request: None if the job is the only request; decode: takes the answer's fields; feed: bytes that
        follow the request, after which no other request may come.
        """
        try:
            with token.unblocking(self._hang_up):
                if request is not None:
                    self._tell(request, files)
                if feed is not None:
                    self._feed(feed)
                said = outcome.take(self._results.handle)
            if said is not None and said[0] == FAULT:
                raise wire.fault(said[1])
            if said is not None:
                answer = FieldReader(said[1])
                result = decode(answer)
                answer.end()
                return result
        except Malformed as error:
            self.close()
            cause = f"the process that read it gave a wrong answer: {error}"
            raise Broken(self._job, self._subject, cause, "the image may be an attack") from None
        except BaseException:
            self.close()
            raise
        self.close()
        token.check()
        raise self.ended(self._subject)

    def ended(self, subject: str) -> Fault:
        """The fault of a worker that has ended without a word."""
        self.close()
        return self._end_of(self._job, subject, self._status)

    def close(self) -> None:
        """Kill it unless it has ended, and wait."""
        if self._ended:
            return
        self._ended = True
        self._source.close()
        self._hang_up()
        with self._asker, suppress(OSError):
            status = self._asker.recv(4)
        self._results.close()
        # Without one the parent has gone, too.
        self._status = int.from_bytes(status, "little") if status else None

    def _tell(self, value: Any, files: Sequence[int]) -> None:
        # If it has found a fault, or has ended, the results say which.
        with suppress(*_GONE):
            wire.put(self._source.handle, value, files)

    def _feed(self, feed: Iterable[bytes]) -> None:
        with suppress(*_GONE):
            for chunk in feed:
                wire.write(self._source.handle, chunk)
        self._source.close()

    def _hang_up(self) -> None:
        with suppress(OSError):
            self._asker.shutdown(socket.SHUT_WR)

"""One worker, as seen by a thread of the daemon: requests go in, answers come out."""

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
from images.worker.answer_frames import FAULT, JobOutcome

T = TypeVar("T")
_GONE = (BrokenPipeError, ConnectionResetError)


class Pipe:
    """One end of a pipe or socket; close() may be repeated."""

    def __init__(self, handle: int) -> None:
        self.handle = handle

    def close(self) -> None:
        """Close the handle, unless closed."""
        if self.handle >= 0:
            os.close(self.handle)
            self.handle = -1


class Worker:
    """A worker for one job; ends with close(), or with a fault."""

    def __init__(
        self,
        job: str,
        subject: str,
        source: Pipe,
        results: Pipe,
        asker: socket.socket,
        end_of: Callable[[str, str, int | None], Fault],
    ) -> None:
        """source: the worker's input; asker: reports the status; shutting it down kills the worker.

        end_of: the fault for a worker that ended without a result, by job, subject, and status.
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
        """Send the job."""
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
        """The answer to a request; blocks.  Faults: as LayerWorkers.run(); the worker has then ended.

        request: None if the job is the only request; decode: takes the answer's fields; feed: bytes to send
        after the request; no further request may follow.
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
        """The fault of a worker that ended without a result."""
        self.close()
        return self._end_of(self._job, subject, self._status)

    def close(self) -> None:
        """Kill the worker unless ended, and wait."""
        if self._ended:
            return
        self._ended = True
        self._source.close()
        self._hang_up()
        with self._asker, suppress(OSError):
            status = self._asker.recv(4)
        self._results.close()
        # No status: the parent has ended too.
        self._status = int.from_bytes(status, "little") if status else None

    def _tell(self, value: Any, files: Sequence[int]) -> None:
        # If the worker has a fault or has ended, the results tell.
        with suppress(*_GONE):
            wire.put_value(self._source.handle, value, files)

    def _feed(self, feed: Iterable[bytes]) -> None:
        with suppress(*_GONE):
            for chunk in feed:
                wire.write_bytes(self._source.handle, chunk)
        self._source.close()

    def _hang_up(self) -> None:
        with suppress(OSError):
            self._asker.shutdown(socket.SHUT_WR)

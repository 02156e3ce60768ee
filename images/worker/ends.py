"""The fault for a worker that ended without a result."""

from __future__ import annotations

import logging
import os
import signal

from daemonkit.faults import Broken, Fault
from images.bounds.limits import ImageLimits
from images.image_errors import oversized

log = logging.getLogger(__name__)
_NO_MEMORY = "is the host out of memory, or do workers together take more than they may?"


def end_of(limits: ImageLimits, job: str, subject: str, status: int | None) -> Fault:
    """The fault for a worker with this exit status."""
    if status is not None and os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        if number == signal.SIGXCPU:
            cause = f"it takes more than {limits.cpu_seconds} s of CPU time"
            return oversized(job, subject, cause, "cpu_seconds")
        if number == signal.SIGKILL:
            return Broken(job, subject, "the process that read it was killed", _NO_MEMORY)
        if number == signal.SIGSYS:
            cause = "the process that read it made a system call that no worker may make, and was killed"
            log.error("%s %r: %s; the image may attack this host", job, subject, cause)
            return Broken(job, subject, cause, "the image may attack this host")
        return Broken(job, subject, f"the process that read it ended by signal {number}")
    return Broken(job, subject, "the process that read it ended", "the log may have its last words")

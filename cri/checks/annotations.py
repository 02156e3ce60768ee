"""Checks our own annotations of pods.  For each handler, the operator lists the allowed annotations."""

from __future__ import annotations

from collections.abc import Mapping

from cri.checks.fields import PREFIX, RUN
from cri.config import ANNOTATIONS, HandlerConfig
from daemonkit.faults import Denied, Invalid


def check_annotations(pod: str, notes: Mapping[str, str], name: str, handler: HandlerConfig) -> None:
    """Check annotations.  Invalid: unknown annotation; Denied: not listed by the handler ``name``."""
    for key in notes:
        if not key.startswith(PREFIX):
            continue
        if key not in ANNOTATIONS:
            raise Invalid("read annotation", key[:200], "unknown", f"known here: {', '.join(ANNOTATIONS)}")
        if key not in handler.annotations:
            cause = f"the annotation {key} is not allowed to pods of runtime handler {name}"
            hint = f"handlers.{name}.annotations in cri.toml has those that are"
            raise Denied(RUN, pod, cause, hint)

"""Signals as CRI and images name them, and as the kernel numbers them (signal(7))."""

from __future__ import annotations

import re
import signal

from xenpod_proto.cri.v1 import runtime_pb2 as cri

_RTMIN = 34  # as the C libraries in containers count it
_RTMAX = 64
_REALTIME = re.compile(r"(RTMIN|RTMAX)(?:(?:\+|PLUS)(\d{1,2})|(?:-|MINUS)(\d{1,2}))?")
_ALIASES = {"CLD": "CHLD", "POLL": "IO", "IOT": "ABRT"}


def number(name: str) -> int:
    """Parse ``SIGTERM``, ``TERM``, ``15`` or ``SIGRTMIN+3``; ValueError for anything else."""
    text = name.strip().upper()
    if text.isascii() and text.isdigit():
        if 1 <= int(text[:4]) <= _RTMAX:
            return int(text)
        raise ValueError(f"{name!r:.40} is not a signal")
    text = text.removeprefix("SIG")
    if match := _REALTIME.fullmatch(text):
        base = _RTMIN if match[1] == "RTMIN" else _RTMAX
        value = base + int(match[2] or 0) - int(match[3] or 0)
        if _RTMIN <= value <= _RTMAX:
            return value
    found = getattr(signal, f"SIG{_ALIASES.get(text, text)}", None)
    if not isinstance(found, signal.Signals):
        raise ValueError(f"{name!r:.40} is not a signal")
    return int(found)


def stop_signal(asked: cri.Signal.ValueType, image_signal: str) -> int:
    """CRI's choice, else the image's, else SIGTERM (also when the image misspells its signal)."""
    if asked != cri.RUNTIME_DEFAULT:
        return number(cri.Signal.Name(asked))
    try:
        return number(image_signal) if image_signal else signal.SIGTERM
    except ValueError:
        return signal.SIGTERM


def cri_signal(value: int) -> cri.Signal.ValueType:
    """The inverse of ``stop_signal``."""
    for name, known in cri.Signal.items():
        if known != cri.RUNTIME_DEFAULT and number(name) == value:
            return known
    return cri.RUNTIME_DEFAULT

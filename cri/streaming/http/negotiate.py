"""Negotiates the transport and the sub-protocol of a request."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Generic, TypeVar

from wsproto.utilities import generate_accept_token

from cri.streaming.http.handshake import Bad, Pairs, Request

SPDY = "spdy/3.1"
SPDY_PROTOCOL = "x-stream-protocol-version"
_KEY_BYTES = 16

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Chosen(Generic[T]):
    """The negotiated transport and sub-protocol, and the headers of the answer."""

    websocket: bool
    protocol: T
    headers: Pairs


def negotiate(request: Request, spdy: Mapping[str, T], websocket: Mapping[str, T]) -> Chosen[T]:
    """Choose the client's first sub-protocol in the table, else Bad; "": the client names none."""
    if request.method not in ("GET", "POST"):
        raise Bad(HTTPStatus.METHOD_NOT_ALLOWED, "only GET and POST", [("Allow", "GET, POST")])
    if request.upgrades_to("websocket"):
        return _websocket(request, websocket)
    if request.upgrades_to(SPDY):
        return _spdy(request, spdy)
    raise Bad(HTTPStatus.BAD_REQUEST, "the request upgrades neither to SPDY/3.1 nor to WebSocket")


def _spdy(request: Request, known: Mapping[str, T]) -> Chosen[T]:
    asked = request.values(SPDY_PROTOCOL)
    name = _first(asked, known)
    if name is None:
        accepted = [("X-Accepted-Stream-Protocol-Version", each) for each in known if each]
        raise Bad(HTTPStatus.FORBIDDEN, "no sub-protocol that this server has", accepted)
    headers = [("Connection", "Upgrade"), ("Upgrade", "SPDY/3.1")]
    if name:
        headers.append(("X-Stream-Protocol-Version", name))
    return Chosen(False, known[name], headers)


def _websocket(request: Request, known: Mapping[str, T]) -> Chosen[T]:
    """RFC 6455, section 4.2."""
    if request.method != "GET":
        raise Bad(HTTPStatus.METHOD_NOT_ALLOWED, "WebSocket begins with GET", [("Allow", "GET")])
    if request.value("sec-websocket-version") != "13":
        raise Bad(
            HTTPStatus.UPGRADE_REQUIRED, "WebSocket version 13 is wanted", [("Sec-WebSocket-Version", "13")]
        )
    key = request.value("sec-websocket-key")
    if not _is_key(key):
        raise Bad(HTTPStatus.BAD_REQUEST, "no Sec-WebSocket-Key of 16 bytes")
    name = _first(request.values("sec-websocket-protocol"), known)
    if name is None:
        raise Bad(HTTPStatus.FORBIDDEN, "no sub-protocol that this server has")
    headers = [
        ("Connection", "Upgrade"),
        ("Upgrade", "websocket"),
        ("Sec-WebSocket-Accept", generate_accept_token(key.encode()).decode()),
    ]
    if name:
        headers.append(("Sec-WebSocket-Protocol", name))
    return Chosen(True, known[name], headers)


def _first(asked: Sequence[str], known: Mapping[str, T]) -> str | None:
    return next((name for name in (asked or [""]) if name in known), None)


def _is_key(key: str) -> bool:
    try:
        return len(base64.b64decode(key, validate=True)) == _KEY_BYTES
    except (binascii.Error, ValueError):
        return False

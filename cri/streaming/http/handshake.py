"""The initial HTTP request of every stream, parsed by h11 (sans-IO, RFC 9112)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from http import HTTPStatus

import h11

from cri.streaming.transport.wire import ClientWire

REQUEST_LIMIT_BYTES = 16 * 1024
"""Most bytes of request line and headers."""
_PIECE_BYTES = 4096
"""Bytes parsed at once: h11 checks its limit after each piece."""

Pairs = Sequence[tuple[str, str]]


class Bad(Exception):
    """The request is refused with a status and a text."""

    def __init__(self, status: HTTPStatus, text: str, headers: Pairs = ()) -> None:
        super().__init__(text)
        self.status = status
        self.headers = headers


@dataclass(frozen=True, slots=True)
class Request:
    """A client's request; everything in it is untrusted."""

    method: str
    path: str
    headers: tuple[tuple[str, str], ...]

    def values(self, name: str) -> list[str]:
        """The values of all headers with this name, split at commas."""
        found = (value for key, value in self.headers if key == name)
        return [item.strip() for value in found for item in value.split(",") if item.strip()]

    def value(self, name: str) -> str:
        """The first value, or ""."""
        return next(iter(self.values(name)), "")

    def upgrades_to(self, protocol: str) -> bool:
        """Whether the request asks to upgrade to ``protocol`` (lower-case)."""
        wanted = {value.lower() for value in self.values("upgrade")}
        return "upgrade" in {value.lower() for value in self.values("connection")} and protocol in wanted


class Handshake:
    """A request and its answer."""

    def __init__(self, wire: ClientWire) -> None:
        self._wire = wire
        self._unparsed = b""
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=REQUEST_LIMIT_BYTES)

    async def target(self) -> str:
        """Read the request line only, and return its path, unchecked; "" if there is none.

        ``request`` then reads the request from its beginning.
        """
        while b"\n" not in self._unparsed and len(self._unparsed) < _PIECE_BYTES:
            data = await self._wire.receive()
            if not data:
                break
            self._unparsed += data
        method_target_version = self._unparsed[:_PIECE_BYTES].partition(b"\n")[0].split(b" ")
        return _path(method_target_version[1]) if len(method_target_version) == 3 else ""

    async def request(self) -> Request | None:
        """Read the request; None: the client left.  Bad unless the request is small and has no body."""
        asked: Request | None = None
        while True:
            try:
                event = self._http.next_event()
            except h11.RemoteProtocolError as error:
                raise Bad(HTTPStatus(error.error_status_hint), f"not HTTP: {error}") from None
            match event:
                case h11.NEED_DATA:
                    await self._more()
                case h11.Request():
                    asked = _request(event)
                case h11.EndOfMessage():
                    return asked
                case h11.Data():
                    raise Bad(HTTPStatus.BAD_REQUEST, "a request with a body")
                case _:
                    return None

    async def switch(self, headers: Pairs) -> bytes:
        """Switch protocols; returns the bytes of the new protocol already received."""
        status = HTTPStatus.SWITCHING_PROTOCOLS
        answer = h11.InformationalResponse(
            status_code=status, headers=list(headers), reason=status.phrase.encode()
        )
        await self._wire.send(self._http.send(answer) or b"")
        return self._http.trailing_data[0] + self._unparsed

    async def refuse(self, bad: Bad) -> None:
        """Answer with the refusal."""
        if self._http.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            return
        body = f"{bad}\n".encode()
        headers = [
            ("Content-Type", "text/plain; charset=utf-8"),
            ("Content-Length", str(len(body))),
            ("Connection", "close"),
            *bad.headers,
        ]
        response = h11.Response(status_code=bad.status, headers=headers, reason=bad.status.phrase.encode())
        for event in (response, h11.Data(data=body), h11.EndOfMessage()):
            await self._wire.send(self._http.send(event) or b"")

    async def _more(self) -> None:
        data = self._unparsed or await self._wire.receive()
        self._unparsed = data[_PIECE_BYTES:]
        self._http.receive_data(data[:_PIECE_BYTES])


def _request(event: h11.Request) -> Request:
    return Request(
        method=event.method.decode("latin-1"),
        path=_path(event.target),
        headers=tuple((name.decode("latin-1"), value.decode("latin-1")) for name, value in event.headers),
    )


def _path(target: bytes) -> str:
    return target.decode("latin-1").partition("?")[0]

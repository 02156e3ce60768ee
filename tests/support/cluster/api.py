"""A client of the Kubernetes API: requests, and watches that end when an object meets a condition."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

import h11

from tests.support.cri.stream_client import Spdy, Ws, spdy, websocket

PATIENCE = 120.0
"""Seconds to wait for anything."""

Object = dict[str, Any]


class ApiRefused(Exception):
    """The API server answered with an error; the exception has the text."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(f"{status}: {text}")
        self.status = status


@dataclass(frozen=True)
class Api:
    """The API server of a cluster, asked with a bearer token; one connection for each request."""

    port: int
    token: str
    host: str = "127.0.0.1"

    async def get(self, path: str) -> Any:
        return await self.call("GET", path)

    async def post(self, path: str, body: Object | str) -> Any:
        """Create an object, from a value or from YAML."""
        return await self.call("POST", path, body)

    async def patch(self, path: str, body: Object) -> Any:
        """Change an object by a merge patch (RFC 7386)."""
        return json.loads(await self.text("PATCH", path, body))

    async def delete(self, path: str) -> Any:
        return await self.call("DELETE", path)

    async def call(self, method: str, path: str, body: Object | str | None = None) -> Any:
        """Make a request: the decoded answer.  ApiRefused: 4xx and 5xx."""
        return json.loads(await self.text(method, path, body))

    async def text(self, method: str, path: str, body: Object | str | None = None) -> str:
        """Make a request whose answer is not JSON: /readyz, logs."""
        return b"".join([part async for part in self._exchange(method, path, body)]).decode()

    async def until(
        self, path: str, selector: str, what: Callable[[Object], bool], patience: float = PATIENCE
    ) -> Object:
        """Watch the objects of a list until an object satisfies ``what``, and return the object.

        ``selector`` is a field selector for a single object. An AssertionError shows the object's last state.
        """
        last: Object = {}
        try:
            async with asyncio.timeout(patience):
                while True:  # the API server ends watches now and then
                    async with aclosing(self._watched(f"{path}?watch=1&fieldSelector={selector}")) as seen:
                        async for last in seen:
                            if what(last):
                                return last
        except TimeoutError:
            raise AssertionError(f"{selector} of {path} is still {json.dumps(last.get('status'))}") from None

    async def websocket(self, path: str) -> Ws:
        """Open a WebSocket, as kubectl does for exec and attach."""
        return await websocket(
            self.url,
            f"{self.url}{path}",
            "v5.channel.k8s.io",
            *self._headers(),
            tls=_trust(),
        )

    async def forward(self, path: str, port: int) -> tuple[Spdy, int]:
        """Connect to a port of a pod, as kubectl does: the client, and the number of its stream."""
        url = f"{self.url}{path}/portforward"
        client = await spdy(self.url, url, "portforward.k8s.io", *self._headers(), tls=_trust())
        about = {"port": str(port), "requestid": "0"}
        await client.open(streamtype="error", **about)
        return client, await client.open(streamtype="data", **about)

    async def changes(self, path: str, version: str) -> AsyncGenerator[tuple[str, Object], None]:
        """Yield each change of a list since a version: its kind, ``ADDED`` or another, and the object."""
        async with aclosing(self._events(f"{path}?watch=1&resourceVersion={version}")) as events:
            async for event in events:
                yield event["type"], event["object"]

    async def _watched(self, path: str) -> AsyncGenerator[Object, None]:
        """Yield the objects of a list, then each change."""
        async with aclosing(self._events(path)) as events:
            async for event in events:
                yield event["object"]

    async def _events(self, path: str) -> AsyncGenerator[Object, None]:
        rest = b""
        async with aclosing(self._exchange("GET", path, None)) as parts:
            async for part in parts:
                *lines, rest = (rest + part).split(b"\n")
                for line in lines:
                    yield json.loads(line)

    async def _exchange(
        self, method: str, path: str, body: Object | str | None
    ) -> AsyncGenerator[bytes, None]:
        """Make a request: the chunks of the answer's body as they come."""
        patch = "merge-patch+" if method == "PATCH" else ""
        kind = "yaml" if isinstance(body, str) else f"{patch}json"
        content = b"" if body is None else (body if isinstance(body, str) else json.dumps(body)).encode()
        reader, writer = await asyncio.open_connection(self.host, self.port, ssl=_trust())
        try:
            state = h11.Connection(h11.CLIENT)
            head = [("Host", "localhost"), ("Connection", "close"), *self._headers()]
            head += [("Content-Type", f"application/{kind}"), ("Content-Length", str(len(content)))]
            for event in (
                h11.Request(method=method, target=path, headers=head),
                h11.Data(content),
                h11.EndOfMessage(),
            ):
                writer.write(state.send(event) or b"")
            await writer.drain()
            refused, text = 0, b""
            while not isinstance(said := state.next_event(), h11.EndOfMessage | h11.ConnectionClosed):
                if said is h11.NEED_DATA:
                    state.receive_data(await reader.read(1 << 16))
                elif isinstance(said, h11.Response):
                    refused = said.status_code if said.status_code >= 400 else 0
                elif isinstance(said, h11.Data) and refused:
                    text += bytes(said.data)
                elif isinstance(said, h11.Data):
                    yield bytes(said.data)
            if refused:
                raise ApiRefused(refused, text.decode())
        finally:
            writer.close()

    @property
    def url(self) -> str:
        return f"https://{self.host}:{self.port}"

    def _headers(self) -> list[tuple[str, str]]:
        return [("Authorization", f"Bearer {self.token}")]


def _trust() -> ssl.SSLContext:
    return ssl._create_unverified_context()  # noqa: S323  # the certificate is of the server's own making

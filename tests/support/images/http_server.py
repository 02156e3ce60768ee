"""HTTP servers for tests, each of which answers in threads while a block runs."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class HttpServer:
    """Serves on a free port of loopback as a context manager; netloc: "127.0.0.1:port"."""

    def __init__(self, handler: type[BaseHTTPRequestHandler], tls: ssl.SSLContext | None = None) -> None:
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        self.netloc = f"127.0.0.1:{self._server.server_address[1]}"
        if tls is not None:
            # Tests use these servers for clients that break off the handshake.
            self._server.handle_error = lambda *_: None  # type: ignore[method-assign]
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)

    def __enter__(self) -> HttpServer:
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05})
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@contextmanager
def dropping_connections() -> Iterator[str]:
    """A port that drops every connection, since the port's queue is full: the netloc."""
    with ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        try:
            while True:
                waiting = stack.enter_context(socket.socket())
                waiting.settimeout(0.5)
                waiting.connect(listener.getsockname())
        except TimeoutError:
            yield f"127.0.0.1:{listener.getsockname()[1]}"

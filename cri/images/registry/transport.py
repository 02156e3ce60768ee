"""HTTP as a registry client needs it: deadlines on every wait, our trust anchors, no surprises from the
environment.

``requests`` alone waits for ever, reads ~/.netrc, and trusts its own bundle instead of the system's.
"""

from __future__ import annotations

import io
import ssl
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import requests
from requests.adapters import HTTPAdapter

from cri.images.registry.connections import POOLS
from cri.images.registry.hosts import RegistryHost
from daemonkit.faults import Refused

MAX_REDIRECTS = 10
_MAX_CAUSES = 32
USER_AGENT = "xenpod-cri"


class Adapter(HTTPAdapter):
    """An adapter of requests with one TLS context and one pair of deadlines."""

    def __init__(self, context: ssl.SSLContext, timeouts: tuple[float, float], connections: int) -> None:
        self._context = context
        self._timeouts = timeouts
        super().__init__(pool_maxsize=connections, max_retries=0)

    def init_poolmanager(self, *args: Any, **kwargs: Any) -> None:
        """Give every pool the TLS context, and connections that can be ended."""
        super().init_poolmanager(*args, ssl_context=self._context, **kwargs)
        self.poolmanager.pool_classes_by_scheme = POOLS

    def proxy_manager_for(self, proxy: str, **kwargs: Any) -> Any:
        """The same for connections through a proxy."""
        manager = super().proxy_manager_for(proxy, ssl_context=self._context, **kwargs)
        manager.pool_classes_by_scheme = POOLS
        return manager

    def build_connection_pool_key_attributes(self, request: Any, verify: Any, cert: Any = None) -> Any:
        """Leave trust to the TLS context; requests would load its own bundle into it."""
        url = urlsplit(request.url)
        return {"scheme": url.scheme, "host": url.hostname, "port": url.port}, {}

    def cert_verify(self, conn: Any, url: Any, verify: Any, cert: Any) -> None:
        """Do nothing: the TLS context verifies certificates."""

    def send(self, request: Any, *args: Any, **kwargs: Any) -> requests.Response:
        """Send with our deadlines, and drop the body of a redirect: requests would read it whole."""
        kwargs["timeout"] = self._timeouts
        response = super().send(request, *args, **kwargs)
        if response.is_redirect:
            response.raw.close()
            response.raw = io.BytesIO()
        return response


class HostSession(requests.Session):
    """A session to one configured host; its own headers and credentials stay with that host."""

    def __init__(self, host: RegistryHost, timeouts: tuple[float, float], connections: int) -> None:
        super().__init__()
        self._host = host
        self.max_redirects = MAX_REDIRECTS
        # An auth that does nothing keeps requests from looking into ~/.netrc.
        self.auth = _unchanged
        self.headers["User-Agent"] = USER_AGENT
        self.headers["Accept-Encoding"] = "identity"
        adapter = Adapter(tls_context(host), timeouts, connections)
        self.mount("https://", adapter)
        self.mount("http://", adapter)

    def rebuild_auth(self, prepared_request: requests.PreparedRequest, response: requests.Response) -> None:
        """Send no secrets along when a redirect leads to another host."""
        before, after = urlsplit(response.request.url or ""), urlsplit(prepared_request.url or "")
        if (before.scheme, before.netloc) != (after.scheme, after.netloc):
            for name in ("Authorization", *(name for name, _ in self._host.headers)):
                prepared_request.headers.pop(name, None)


def tls_context(host: RegistryHost) -> ssl.SSLContext:
    """The system's trust anchors and the host's own; raises Refused for files that cannot be read."""
    context = ssl.create_default_context()
    try:
        for ca in host.ca:
            context.load_verify_locations(cafile=ca)
        for pair in host.clients:
            context.load_cert_chain(pair.certificate, pair.key)
    except (OSError, ssl.SSLError) as error:
        raise Refused(
            "load certificates", str(host), str(error), "check ca and client in hosts.toml"
        ) from error
    if host.skip_verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def causes(error: BaseException) -> Iterator[BaseException]:
    """An error and its causes, outermost first; requests and urllib3 nest them in several ways."""
    seen: BaseException | None = error
    for _ in range(_MAX_CAUSES):
        if seen is None:
            return
        yield seen
        nested = (getattr(seen, "reason", None), *seen.args, seen.__cause__, seen.__context__)
        seen = next((one for one in nested if isinstance(one, BaseException)), None)


def _unchanged(request: requests.PreparedRequest) -> requests.PreparedRequest:
    return request

"""HTTP for a registry client: deadlines on every wait, given trust anchors, no influence of the environment.

``requests`` alone waits for ever, reads ~/.netrc, and trusts its own bundle instead of the system's.
"""

from __future__ import annotations

import io
import os
import ssl
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any
from urllib.parse import urljoin, urlsplit

import requests
from requests.adapters import HTTPAdapter
from requests.utils import select_proxy

from daemonkit.faults import Denied, Refused
from images.registry.briefing import TrustFiles
from images.registry.conversation.connections import pools
from images.registry.conversation.targets import Targets
from images.registry.hosts import RegistryHost

MAX_REDIRECTS = 10
_MAX_CAUSES = 32
USER_AGENT = "xenpod-cri"


class Adapter(HTTPAdapter):
    """An adapter of requests with one TLS context, one pair of deadlines, and its allowed targets."""

    def __init__(
        self,
        context: ssl.SSLContext | None,
        timeouts: tuple[float, float],
        connections: int,
        targets: Targets,
    ) -> None:
        self._context = context
        self._targets = targets
        self._pools = pools(targets)
        self._timeouts = timeouts
        super().__init__(pool_maxsize=connections, max_retries=0)

    def init_poolmanager(self, *args: Any, **kwargs: Any) -> None:
        """Give every pool the TLS context, and connections that check their target."""
        super().init_poolmanager(*args, ssl_context=self._context, **kwargs)
        self.poolmanager.pool_classes_by_scheme = self._pools

    def proxy_manager_for(self, proxy: str, **kwargs: Any) -> Any:
        """The same for connections through a proxy."""
        manager = super().proxy_manager_for(proxy, ssl_context=self._context, **kwargs)
        manager.pool_classes_by_scheme = self._pools
        return manager

    def build_connection_pool_key_attributes(self, request: Any, verify: Any, cert: Any = None) -> Any:
        """Leave trust to the TLS context; requests would add its own bundle."""
        url = urlsplit(request.url)
        return {"scheme": url.scheme, "host": url.hostname, "port": url.port}, {}

    def cert_verify(self, conn: Any, url: Any, verify: Any, cert: Any) -> None:
        """Do nothing: the TLS context verifies certificates."""

    def send(self, request: Any, *args: Any, **kwargs: Any) -> requests.Response:
        """Send with the deadlines, and drop the body of a redirect: requests would read the whole body."""
        kwargs["timeout"] = self._timeouts
        if select_proxy(request.url, kwargs.get("proxies")):
            self._targets.check_literal(request.url)
        response = super().send(request, *args, **kwargs)
        if response.is_redirect:
            response.raw.close()
            response.raw = io.BytesIO()
        return response


class HostSession(requests.Session):
    """A session to one configured host; its own headers and credentials stay with the host."""

    def __init__(
        self,
        host: RegistryHost,
        tls: Callable[[], ssl.SSLContext],
        timeouts: tuple[float, float],
        connections: int,
        targets: Targets,
    ) -> None:
        super().__init__()
        self._host = host
        self.redirect_header: Callable[[str], str] = lambda url: ""
        """Gives the Authorization header for a URL of another host that a redirect leads to; "": none."""
        self.max_redirects = MAX_REDIRECTS
        # Without an auth, requests would read ~/.netrc.
        self.auth = _unchanged
        self.headers["User-Agent"] = USER_AGENT
        self.headers["Accept-Encoding"] = "identity"
        self._adapter = partial(Adapter, timeouts=timeouts, connections=connections, targets=targets)
        self._tls = tls
        self._lock = threading.Lock()
        self.adapters.clear()
        self.mount("http://", self._adapter(None))

    def get_adapter(self, url: str) -> requests.adapters.BaseAdapter:
        """The adapter for a URL; the TLS adapter is made at first use, because trust anchors take 10 ms."""
        with self._lock:
            if urlsplit(url).scheme == "https" and "https://" not in self.adapters:
                self.mount("https://", self._adapter(self._tls()))
        return super().get_adapter(url)

    def get_redirect_target(self, resp: requests.Response) -> str | None:
        """The target of a redirect; Denied if from https to http."""
        target: str | None = super().get_redirect_target(resp)
        if target and urlsplit(resp.url).scheme == "https":
            scheme = urlsplit(urljoin(resp.url, target)).scheme
            if scheme != "https":
                cause = f"the registry would have us go on without encryption ({scheme[:20]})"
                raise Denied("pull", urlsplit(resp.url).netloc, cause)
        return target

    def rebuild_auth(self, prepared_request: requests.PreparedRequest, response: requests.Response) -> None:
        """Send no secrets along when a redirect leads to another host; that host's own token may go."""
        before, after = urlsplit(response.request.url or ""), urlsplit(prepared_request.url or "")
        if (before.scheme, before.netloc) != (after.scheme, after.netloc):
            for name in ("Authorization", *(name for name, _ in self._host.headers)):
                prepared_request.headers.pop(name, None)
            if header := self.redirect_header(prepared_request.url or ""):
                prepared_request.headers["Authorization"] = header


def tls_context(host: RegistryHost, trust: TrustFiles) -> ssl.SSLContext:
    """The system's trust anchors and the host's own; raises Refused for unusable files."""
    try:
        if trust.fault:
            raise OSError(trust.fault)
        context = ssl.create_default_context(cadata=_pem(trust.anchors) or None)
        for authority in trust.authorities:
            context.load_verify_locations(cadata=_pem(authority))
        for pair in trust.clients:
            _load_pair(context, *pair)
    except (OSError, ssl.SSLError, ValueError) as error:
        raise Refused(
            "load certificates", str(host), str(error), "check ca and client in hosts.toml"
        ) from error
    if host.skip_verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def early_context(host: RegistryHost, trust: TrustFiles) -> Callable[[], ssl.SSLContext]:
    """As tls_context(), but reads the files now; the result raises Refused if they are unusable."""
    try:
        context = tls_context(host, trust)
    except Refused as refused:
        fault = refused

        def refuse() -> ssl.SSLContext:
            raise fault

        return refuse
    return lambda: context


def _pem(data: bytes) -> str:
    # Files of distributions have comments in any language.
    return data.decode("ascii", "ignore")


def _load_pair(context: ssl.SSLContext, certificate: bytes, key: bytes) -> None:
    """Load a client's certificate and key through files, because OpenSSL reads both only by file name."""
    handles = []
    try:
        for data in filter(None, (certificate, key)):
            handles.append(os.memfd_create("pem", os.MFD_CLOEXEC))
            os.write(handles[-1], data)
        context.load_cert_chain(*(f"/proc/self/fd/{handle}" for handle in handles))
    finally:
        for handle in handles:
            os.close(handle)


def causes(error: BaseException) -> Iterator[BaseException]:
    """An error and its causes, outermost first; requests and urllib3 nest errors in several ways."""
    seen: BaseException | None = error
    for _ in range(_MAX_CAUSES):
        if seen is None:
            return
        yield seen
        nested = (getattr(seen, "reason", None), *seen.args, seen.__cause__, seen.__context__)
        seen = next((one for one in nested if isinstance(one, BaseException)), None)


def _unchanged(request: requests.PreparedRequest) -> requests.PreparedRequest:
    return request

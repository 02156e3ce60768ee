"""The client of one registry host, built on oras.

Used from oras: the session, challenges and repeats of ``Registry.do_request``, and the URLs of ``Container``.
Not used: the retry decorator (sleeps for minutes, instead of trying the next host), ``get_blob`` (no ranges),
``get_manifest`` (returns parsed JSON, without the bytes to verify a digest) and ``download_blob`` (neither
verifies nor bounds).
"""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import oras.container
import oras.provider
import requests
import urllib3

from daemonkit.faults import Denied, Fault, Missing, Unreachable
from images.image_errors import Busy, Corrupt, Interrupted, NoRanges, Stalled, Unconnected
from images.image_settings import ImageSettings
from images.registry.conversation.auth import Authority, Unanswered
from images.registry.conversation.retry import retry_after
from images.registry.conversation.scheme import met_plain_http, speaks_tls
from images.registry.conversation.targets import Targets, origin
from images.registry.conversation.transport import HostSession, causes
from images.registry.credentials import ANONYMOUS, Credentials
from images.registry.hosts import RegistryHost
from images.registry.manifests import ACCEPTED
from images.registry.names import Reference

_FOUND = frozenset({200, 206})
# Timeout, too many requests, and errors of gateways and overloaded servers: a retry may succeed.
_OVERLOADED = frozenset({408, 429})
_PASSING = _OVERLOADED | {500, 502, 503, 504}
_BAD_REQUEST = 400
_NO_RANGE = 416
_MAX_ROUNDS = 3
"""Rounds of a request in which a host behind a redirect asks for a token; oras answers one challenge each."""


class Repository(oras.container.Container):  # type: ignore[misc]
    """A repository at a host: oras' URLs with the host's path, and the registry behind a mirror."""

    def __init__(self, host: RegistryHost, reference: Reference) -> None:
        self.registry = host.netloc
        self.namespace = None
        self.repository = reference.repository
        self.tag, self.digest = reference.tag, reference.digest
        self._base = f"{host.netloc}{host.path}/{reference.repository}"
        self._query = f"?ns={reference.host}" if host.mirror else ""

    def manifest_url(self, tag: str | None = None) -> str:
        """The URL without scheme, for oras."""
        return f"{self._base}/manifests/{tag or self.digest or self.tag}{self._query}"

    def get_blob_url(self, digest: str) -> str:
        """The URL without scheme, for oras."""
        return f"{self._base}/blobs/{digest}{self._query}"


class RegistryClient(oras.provider.Registry):  # type: ignore[misc]
    """A host of a repository. Every failure is a Fault: Missing, Denied, Unreachable, TooLate.

    Interrupted and Stalled are worth a retry, Unconnected is not.
    """

    def __init__(
        self,
        host: RegistryHost,
        tls: Callable[[], ssl.SSLContext],
        reference: Reference,
        credentials: Credentials,
        settings: ImageSettings,
    ) -> None:
        super().__init__(hostname=host.netloc, insecure=host.scheme == "http", tls_verify=True)
        self.host = host
        self._repository = Repository(host, reference)
        self._subject = f"{reference} at {host}"
        self._settings, self._registry = settings, reference.host
        self._answered = False
        timeouts = (host.dial_seconds or settings.connect_seconds, settings.stall_seconds)
        targets = Targets(host, settings.private_targets)
        self.session = HostSession(host, tls, timeouts, settings.downloads_per_image, targets)
        self.headers = dict(host.headers)
        shown = credentials if credentials.serve(reference.host, host.netloc) else ANONYMOUS
        self.auth = Authority(self.session, shown, host)
        self.session.redirect_header = self.auth.redirect_header

    def do_request(self, url: str, method: str = "GET", *args: Any, **kwargs: Any) -> requests.Response:
        """Send a request through oras, but without retries; returns successes only."""
        kwargs["headers"] = {**self.headers, **(kwargs.get("headers") or {})}
        with self._failures("pull"):
            response = self._request(url, method, *args, **kwargs)
            for _ in range(_MAX_ROUNDS - 1):
                if response.status_code != requests.codes.unauthorized or not self._behind(response.url):
                    break
                # oras has answered the registry's own challenge, then a redirect led to the next one.
                response.close()
                response = self._request(url, method, *args, **kwargs)
        # TLS servers answer plain http with this status, if at all.
        self._answered = self._answered or response.status_code != _BAD_REQUEST
        if response.status_code not in _FOUND:
            with response:
                raise self._refusal(response)
        return response

    def _request(self, url: str, method: str, *args: Any, **kwargs: Any) -> requests.Response:
        """One round: a request, and its repeat after a challenge."""
        try:
            response: requests.Response = oras.provider.Registry.do_request.__wrapped__(
                self, url, method, *args, **kwargs
            )
        except requests.RequestException:
            raise
        except Unanswered as error:
            raise self._denied(error.url, "access is denied") from error
        except ValueError as error:
            # oras raises ValueError if the backend has no answer to a challenge.
            raise self._denied(url, "access is denied") from error
        return response

    def manifest(self, target: str, most: int) -> tuple[bytes, str]:
        """The bytes of a manifest by tag or digest, unverified, and the media type the host says."""
        url = f"{self.prefix}://{self._repository.manifest_url(target)}"
        with self._failures("pull"):
            with self.do_request(url, headers={"Accept": ", ".join(ACCEPTED)}, stream=True) as response:
                body = response.raw.read(most + 1, decode_content=True)
        if len(body) > most:
            hint = "images.limits.manifest_bytes in cri.toml is the limit"
            raise Corrupt("pull", self._subject, f"the manifest is larger than {most} bytes", hint)
        return body, response.headers.get("Content-Type", "")

    @contextmanager
    def blob(self, digest: str, start: int) -> Iterator[requests.Response]:
        """An open download from a byte on; errors while the body reads become Faults too.

        A host may still answer with the whole blob (200 instead of 206).
        """
        url = f"{self.prefix}://{self._repository.get_blob_url(digest)}"
        headers = {"Range": f"bytes={start}-"} if start else {}
        with self._failures("pull"), self.do_request(url, headers=headers, stream=True) as response:
            yield response

    @contextmanager
    def _failures(self, operation: str) -> Iterator[None]:
        """Map foreign errors to Faults, by their kind alone: their texts may hold URLs with tokens."""
        try:
            yield
        except Fault:
            raise
        except (
            requests.ConnectTimeout,
            requests.ConnectionError,
            urllib3.exceptions.NewConnectionError,
        ) as error:
            subject = self._subject_at(_failed_url(error))
            if _timed_out(error):
                raise Stalled(operation, subject, "the registry stopped answering") from error
            if met_plain_http(error, self.host) or (_broke_off(error) and self._meets_tls()):
                raise self._wrong_scheme(operation) from error
            kind = Interrupted if _broke_off(error) else Unconnected
            raise kind(operation, subject, _root_cause(error)) from error
        except (requests.Timeout, urllib3.exceptions.TimeoutError) as error:
            subject = self._subject_at(_failed_url(error))
            raise Stalled(operation, subject, "the registry stopped answering") from error
        except urllib3.exceptions.ProtocolError as error:
            raise Interrupted(
                operation, self._subject, f"the connection broke off: {_root_cause(error)}"
            ) from error
        except (requests.RequestException, urllib3.exceptions.HTTPError) as error:
            raise Unreachable(
                operation, self._subject_at(_failed_url(error)), type(error).__name__
            ) from error

    def _meets_tls(self) -> bool:
        """Whether http was spoken to a TLS port; not checked again once the port has answered http."""
        if self.host.scheme != "http" or self._answered:
            return False
        return speaks_tls(self.host, self._settings.connect_seconds)

    def _wrong_scheme(self, operation: str) -> Unconnected:
        file = self._settings.certs_dir / self._registry / "hosts.toml"
        if self.host.scheme == "http":
            cause, hint = "http was spoken to a port of TLS", f"name https://{self.host.netloc} in {file}"
        else:
            cause = "https was spoken to a port that does not speak TLS"
            hint = f"if it has none, name http://{self.host.netloc} in {file}"
        return Unconnected(operation, self._subject, cause, hint)

    def _behind(self, url: str | None) -> str:
        """The host of a URL, if a redirect led there; "" for the configured host."""
        parts = urlsplit(url or "")
        if not url or origin(url) == origin(f"{self.host.scheme}://{self.host.netloc}"):
            return ""
        # Without a user name and password in the URL.
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2][:255]}"

    def _subject_at(self, url: str | None) -> str:
        """The subject of a fault: names the configured host, and the host behind a redirect."""
        behind = self._behind(url)
        return f"{self._subject}, redirected to {behind}" if behind else self._subject

    def _denied(self, url: str, cause: str) -> Denied:
        hint = "no credentials go with a redirect" if self._behind(url) else "check the credentials"
        return Denied("pull", self._subject_at(url), cause, hint)

    def _refusal(self, response: requests.Response) -> Fault:
        status, subject = response.status_code, self._subject_at(response.url)
        if status == 404:
            return Missing("pull", subject, "no such image")
        if status in (401, 403):
            return self._denied(response.url, f"access is denied ({status})")
        if status == _NO_RANGE:
            return NoRanges("pull", subject, "the registry gives no part of a blob")
        if status == _BAD_REQUEST and self._meets_tls():
            return self._wrong_scheme("pull")
        cause = f"the registry answers {status} {response.reason}"[:200]
        if status in _PASSING:
            after = retry_after(response.headers.get("Retry-After", ""), time.time())
            return Busy("pull", subject, cause, after=after, overloaded=status in _OVERLOADED)
        return Unreachable("pull", subject, cause)


def _broke_off(error: BaseException) -> bool:
    """Whether a connection existed: a host that refused one will refuse the next, too."""
    return any(isinstance(arg, urllib3.exceptions.ProtocolError) for arg in error.args)


def _timed_out(error: BaseException) -> bool:
    return any(isinstance(arg, urllib3.exceptions.ReadTimeoutError) for arg in error.args)


def _failed_url(error: BaseException) -> str | None:
    """The URL of the request that failed, if known: after a redirect another host's."""
    request = error.request if isinstance(error, requests.RequestException) else None
    return request.url if request else None


def _root_cause(error: BaseException) -> str:
    """The innermost system error, for example "[Errno 111] Connection refused": useful to a user."""
    for one in causes(error):
        if isinstance(one, OSError) and one.strerror and not isinstance(one, requests.RequestException):
            return one.strerror
    return type(error).__name__

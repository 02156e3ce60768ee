"""Answers a registry's challenges: oras' token backend, with only the credentials of a CRI call.

Unfit for xenpod in oras' own backend: reads credentials from Docker's files and helpers, answers a Basic
challenge like a Bearer one, has no identity tokens, and follows a realm to any host. Source: distribution's
spec/auth (token.md, oauth.md), RFC 7235.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import requests
from oras.auth.token import TokenAuth

from daemonkit.faults import Denied, Unreachable
from images.image_errors import Interrupted
from images.registry.conversation.challenge import challenges
from images.registry.conversation.retry import retry_after
from images.registry.conversation.targets import Origin, origin
from images.registry.credentials import ANONYMOUS, Credentials
from images.registry.hosts import RegistryHost

MAX_TOKEN_ANSWER_BYTES = 1 << 20
_MAX_REDIRECT_HOSTS = 16
"""Hosts behind redirects whose tokens are kept; the oldest are dropped."""


class Unanswered(ValueError):
    """A host behind a redirect refuses access, and no anonymous token helps.  url: of the refused request."""

    def __init__(self, url: str) -> None:
        super().__init__("no answer to a challenge behind a redirect")
        self.url = url


class Authority(TokenAuth):  # type: ignore[misc]
    """The credentials of one pull at one host. oras calls this object before and after each request.

    Hosts behind redirects get anonymous tokens only, each its own.
    """

    def __init__(self, session: requests.Session, credentials: Credentials, host: RegistryHost) -> None:
        super().__init__()
        self.session = session
        self._credentials = credentials
        self._host = host
        self._lock = threading.Lock()
        self._own = origin(f"{host.scheme}://{host.netloc}")
        self._redirect_headers: dict[Origin, str] = {}
        self._header = f"Bearer {credentials.registry_token}" if credentials.registry_token else ""
        # oras asks for the header only if this is set.
        self.token = self._header or None

    def load_configs(self, container: Any, configs: Any = None) -> None:
        """Do nothing: the files of the daemon's user are not the caller's credentials."""

    def get_auth_header(self) -> dict[str, str]:
        """The headers to send before any challenge."""
        return {"Authorization": self._header} if self._header else {}

    def authenticate_request(
        self, original: requests.Response, headers: dict[str, str], refresh: bool = False
    ) -> tuple[dict[str, str], bool]:
        """Answer a challenge; False without a (new) answer, Unanswered if a redirect led to the host."""
        challenge = original.headers.get("Www-Authenticate", "")
        shown = original.request.headers.get("Authorization", "")
        original.close()
        if origin(original.url) != self._own:
            self._authenticate_redirect(original.url, challenge, shown)
            return headers, True
        with self._lock:
            if self._header and self._header != shown:
                # Another thread has already answered the challenge.
                return headers | self.get_auth_header(), True
            if self._credentials.registry_token or (refresh and not challenge):
                return headers, False
            self._header = self._answer(challenge, self._host.scheme, self._credentials)
            self.token = self._header or None
            return headers | self.get_auth_header(), bool(self._header) and self._header != shown

    def redirect_header(self, url: str) -> str:
        """The Authorization header for a URL that a redirect leads to; "" for none."""
        with self._lock:
            return self._redirect_headers.get(origin(url), "")

    def _authenticate_redirect(self, url: str, challenge: str, shown: str) -> None:
        """Get an anonymous token for a host behind a redirect."""
        asking = origin(url)
        with self._lock:
            if self._redirect_headers.get(asking, shown) != shown:
                # Another thread has already answered the challenge.
                return
            header = self._answer(challenge, asking[0], ANONYMOUS)
            if not header or header == shown:
                raise Unanswered(url)
            self._redirect_headers.pop(asking, None)
            while len(self._redirect_headers) >= _MAX_REDIRECT_HOSTS:
                del self._redirect_headers[next(iter(self._redirect_headers))]
            self._redirect_headers[asking] = header

    def _answer(self, untrusted_header: str, scheme: str, credentials: Credentials) -> str:
        """The header for a challenge of a host; scheme: how the host was asked."""
        found = {one.scheme: one.parameters for one in reversed(challenges(untrusted_header))}
        if "bearer" in found:
            return self._bearer(found["bearer"], scheme, credentials)
        if "basic" in found and credentials.username:
            return f"Basic {credentials.basic()}"
        return ""

    def _bearer(self, fields: Mapping[str, str], scheme: str, credentials: Credentials) -> str:
        try:
            realm = urlsplit(fields.get("realm", ""))
        except ValueError:
            return ""
        if realm.scheme not in ("http", "https") or not realm.hostname:
            return ""
        if scheme == "https" and realm.scheme == "http":
            # A token is a secret too, and anybody may answer plain http.
            raise Denied("authenticate", realm.netloc, "the registry would have us authenticate unencrypted")
        query = {key: fields[key] for key in ("service", "scope") if fields.get(key)}
        try:
            response = self._ask(realm.geturl(), query, credentials)
        except requests.RequestException as error:
            raise Unreachable("authenticate", realm.netloc, type(error).__name__) from error
        with response:
            if response.status_code in (400, 401, 403):
                raise Denied(
                    "authenticate", realm.netloc, f"the token service answers {response.status_code}"
                )
            if response.status_code != 200:
                cause = f"the token service answers {response.status_code}"
                after = retry_after(response.headers.get("Retry-After", ""), time.time())
                raise Interrupted("authenticate", realm.netloc, cause, after=after)
            return f"Bearer {_token(response, realm.netloc)}"

    def _ask(self, realm: str, query: dict[str, str], credentials: Credentials) -> requests.Response:
        if credentials.identity_token:
            form = {"grant_type": "refresh_token", "refresh_token": credentials.identity_token}
            return self.session.post(realm, data=form | query | {"client_id": "xenpod"}, stream=True)
        headers = {"Authorization": f"Basic {credentials.basic()}"} if credentials.username else {}
        return self.session.get(realm, params=query, headers=headers, stream=True)


def _token(response: requests.Response, netloc: str) -> str:
    try:
        body = response.raw.read(MAX_TOKEN_ANSWER_BYTES + 1, decode_content=True)
        if len(body) > MAX_TOKEN_ANSWER_BYTES:
            raise ValueError("too long")
        answer = json.loads(body)
        token = answer.get("token") or answer.get("access_token")
    except (ValueError, AttributeError, RecursionError) as error:
        raise Unreachable("authenticate", netloc, "the token service's answer is not JSON") from error
    if not isinstance(token, str) or not token.isascii() or not token.isprintable():
        raise Unreachable("authenticate", netloc, "the token service gives no token")
    return token

"""Receivers of credentials, and answers of a token service."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
import requests

from daemonkit.faults import Denied, Unreachable
from images.registry.conversation.auth import MAX_TOKEN_ANSWER_BYTES, Authority, Unanswered
from images.registry.credentials import ANONYMOUS, Credentials
from images.registry.hosts import RegistryHost

PASSWORD = Credentials("user", "se:cret")
REGISTRY = "registry.example"


class _TokenService:
    """A session that keeps the arguments of its requests, and answers them."""

    def __init__(self, answer: bytes = b'{"token": "the-token"}') -> None:
        self.asked: list[tuple[str, str, dict[str, Any]]] = []
        self._answer = answer

    def get(self, url: str, **more: Any) -> requests.Response:
        return self._respond("GET", url, more)

    def post(self, url: str, **more: Any) -> requests.Response:
        return self._respond("POST", url, more)

    def _respond(self, method: str, url: str, more: dict[str, Any]) -> requests.Response:
        self.asked.append((method, url, more))
        response = requests.Response()
        response.status_code = 200
        response.raw = _Raw(self._answer)
        return response


class _Raw(io.BytesIO):
    def read(self, size: int | None = -1, decode_content: bool = False) -> bytes:
        return super().read(size)


def _answered(
    service: _TokenService, credentials: Credentials, realm: str, scheme: str = "https"
) -> tuple[dict[str, str], bool]:
    """The answer of an authority to a challenge of the registry."""
    authority = Authority(service, credentials, RegistryHost(scheme, REGISTRY))  # type: ignore[arg-type]
    return authority.authenticate_request(_challenge(f"{scheme}://{REGISTRY}/v2/app/manifests/1", realm), {})


def _challenge(url: str, realm: str, shown: str = "") -> requests.Response:
    """The answer 401 of the host of ``url``; shown: the header Authorization of the request."""
    challenged = requests.Response()
    challenged.status_code, challenged.url = 401, url
    challenged.headers["Www-Authenticate"] = f'Bearer realm="{realm}",service="s"'
    challenged.raw = io.BytesIO()
    headers = {"Authorization": shown} if shown else {}
    challenged.request = requests.Request("GET", url, headers=headers).prepare()
    return challenged


@pytest.mark.parametrize(
    "credentials",
    [PASSWORD, Credentials(identity_token="refresh"), ANONYMOUS],
    ids=["password", "identity token", "anonymous"],
)
@pytest.mark.parametrize("realm", ["http://auth.example/token", f"http://{REGISTRY}/token", "HTTP://a/t"])
def test_no_token_of_an_https_registry_is_requested_unencrypted(credentials: Credentials, realm: str) -> None:
    service = _TokenService()
    with pytest.raises(Denied, match="unencrypted"):
        _answered(service, credentials, realm)
    assert service.asked == []


def test_an_unencrypted_realm_of_an_http_registry_may_be_asked_without_credentials() -> None:
    service = _TokenService()
    assert _answered(service, ANONYMOUS, "http://auth.example/token", "http") == (
        {"Authorization": "Bearer the-token"},
        True,
    )
    assert [(method, more["headers"]) for method, _, more in service.asked] == [("GET", {})]


@pytest.mark.parametrize(
    ("scheme", "realm"), [("https", "https://auth.example/token"), ("http", "http://auth.example/token")]
)
def test_a_realm_as_safe_as_its_registry_is_shown_the_credentials(scheme: str, realm: str) -> None:
    service = _TokenService()
    assert _answered(service, PASSWORD, realm, scheme)[1]
    ((_, url, more),) = service.asked
    assert (url, more["headers"]) == (realm, {"Authorization": f"Basic {PASSWORD.basic()}"})


@pytest.mark.parametrize("realm", ["file:///etc/passwd", "ftp://a/t", "auth.example/token", "https:///t", ""])
def test_malformed_realms_get_no_request(realm: str) -> None:
    service = _TokenService()
    assert _answered(service, PASSWORD, realm) == ({}, False)
    assert service.asked == []


def test_a_token_answer_is_read_up_to_its_cap() -> None:
    """JSON may end in spaces: a cut answer would still be valid."""
    answer = json.dumps({"token": "the-token"}).encode()
    full = answer.ljust(MAX_TOKEN_ANSWER_BYTES)
    assert _answered(_TokenService(full), PASSWORD, "https://a/t")[1]
    with pytest.raises(Unreachable, match="not JSON"):
        _answered(_TokenService(full + b" "), PASSWORD, "https://a/t")


@pytest.mark.parametrize(
    "credentials",
    [PASSWORD, Credentials(identity_token="refresh"), Credentials(registry_token="given"), ANONYMOUS],
    ids=["password", "identity token", "registry token", "anonymous"],
)
def test_host_behind_a_redirect_gets_an_anonymous_token_of_its_own(credentials: Credentials) -> None:
    service = _TokenService()
    authority = Authority(service, credentials, RegistryHost("https", REGISTRY))  # type: ignore[arg-type]
    own = authority.get_auth_header()
    challenged = _challenge("https://other.example/blob", "https://auth.example/token")
    assert authority.authenticate_request(challenged, dict(own)) == (own, True)
    assert [(method, more["headers"]) for method, _, more in service.asked] == [("GET", {})]
    assert authority.redirect_header("https://other.example/else?x=1") == "Bearer the-token"
    for url in (f"https://{REGISTRY}/x", "http://other.example/x", "https://other.example:8443/x"):
        assert authority.redirect_header(url) == ""
    assert authority.get_auth_header() == own


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_no_token_for_an_https_host_behind_a_redirect_is_requested_unencrypted(scheme: str) -> None:
    service = _TokenService()
    authority = Authority(service, ANONYMOUS, RegistryHost(scheme, REGISTRY))  # type: ignore[arg-type]
    with pytest.raises(Denied, match="unencrypted"):
        authority.authenticate_request(
            _challenge("https://other.example/b", "http://other.example/token"), {}
        )
    assert service.asked == []


def test_token_refused_behind_a_redirect_is_not_reused() -> None:
    service = _TokenService()
    authority = Authority(service, ANONYMOUS, RegistryHost("https", REGISTRY))  # type: ignore[arg-type]
    url, realm = "https://other.example/blob", "https://auth.example/token"
    assert authority.authenticate_request(_challenge(url, realm), {})[1]
    # A request that another thread sent before the token was known.
    assert authority.authenticate_request(_challenge(url, realm), {})[1]
    assert len(service.asked) == 1
    with pytest.raises(Unanswered):
        authority.authenticate_request(_challenge(url, realm, "Bearer the-token"), {})
    assert len(service.asked) == 2


def test_tokens_of_hosts_behind_redirects_are_bounded() -> None:
    authority = Authority(_TokenService(), ANONYMOUS, RegistryHost("https", REGISTRY))  # type: ignore[arg-type]
    urls = [f"https://host-{number}.example/blob" for number in range(40)]
    for url in urls:
        authority.authenticate_request(_challenge(url, "https://auth.example/token"), {})
    assert [bool(authority.redirect_header(url)) for url in urls] == [False] * 24 + [True] * 16


@pytest.mark.parametrize(
    ("named", "asked"),
    [("Registry.Example", "registry.example"), ("registry.example:443", "registry.example"),
     ("registry.example", "registry.example:443")],
)  # fmt: skip
def test_other_spelling_of_the_registry_is_shown_its_credentials(named: str, asked: str) -> None:
    service = _TokenService()
    authority = Authority(service, PASSWORD, RegistryHost("https", named))  # type: ignore[arg-type]
    challenged = _challenge(f"https://{asked}/v2/app/manifests/1", "https://auth.example/token")
    assert authority.authenticate_request(challenged, {}) == ({"Authorization": "Bearer the-token"}, True)
    assert service.asked[0][2]["headers"] == {"Authorization": f"Basic {PASSWORD.basic()}"}

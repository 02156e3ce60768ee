"""Redirects from one registry to a second registry; the second registry demands its own anonymous token."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from daemonkit.faults import Denied
from images.image_settings import ImageSettings
from images.manager import ImageManager
from images.registry import names
from images.registry.credentials import Credentials
from tests.support.images.image_manager import running
from tests.support.images.images import Layer, build, digest, packed
from tests.support.images.registry import Answer, LyingRegistry, content, status

IMAGE = build([packed(Layer().dir("etc").file("etc/passwd", b"x" * 300_000).tar(), "")])
MANIFEST = "/v2/app/manifests/1"
LAYER = f"/v2/app/blobs/{digest(IMAGE.layers[0].data)}"
PATHS = (MANIFEST, f"/v2/app/blobs/{IMAGE.id}", LAYER)
USER = Credentials("user", "se:cret")
FIRST, SECOND = "token-of-the-first", "token-of-the-second"


class Guard:
    """Has a registry ask for a Bearer token, which a service gives to everybody. shown: headers it got."""

    def __init__(self, registry: LyingRegistry, token: str, realm: str = "") -> None:
        self.token, self.shown = token, list[str]()
        self.scopes: list[list[str]] = []
        self._challenge = f'Bearer realm="{realm or f"http://{registry.netloc}/token"}",service="s",'
        self._challenge += f'scope="repository:{token}:pull"'
        registry.answers = {path: self._guarded(answer) for path, answer in registry.answers.items()}

    def give(self, handler: BaseHTTPRequestHandler) -> None:
        """The token service's answer."""
        self.shown.append(handler.headers.get("Authorization", ""))
        self.scopes.append(parse_qs(urlsplit(handler.path).query)["scope"])
        content(json.dumps({"token": self.token}).encode())(handler)

    def refuse(self, handler: BaseHTTPRequestHandler) -> None:
        status(401, WWW_Authenticate=self._challenge)(handler)

    def _guarded(self, inner: Answer) -> Answer:
        def answer(handler: BaseHTTPRequestHandler) -> None:
            right = handler.headers.get("Authorization") == f"Bearer {self.token}"
            (inner if right else self.refuse)(handler)

        return answer


@contextmanager
def registries(*redirected: str) -> Iterator[tuple[LyingRegistry, LyingRegistry]]:
    """Two registries; the first redirects these paths to the second."""
    with LyingRegistry("other", "1", IMAGE) as second, LyingRegistry("app", "1", IMAGE) as first:
        for path in redirected:
            target = f"http://{second.netloc}{path.replace('app', 'other')}"
            first.answers[path] = status(307, Location=target)
        yield first, second


@pytest.fixture
async def manager(tmp_path: Path) -> AsyncIterator[ImageManager]:
    async with running(ImageSettings(tmp_path, tmp_path / "certs.d", connect_seconds=30)) as made:
        yield made


async def _pull(manager: ImageManager, registry: LyingRegistry) -> str:
    return (await manager.pull(names.parse(f"{registry.netloc}/app:1"), USER)).id


def _secrets(registry: LyingRegistry) -> set[str]:
    """Values of Authorization that a registry has seen."""
    shown = {headers.get("Authorization", "") for _, _, headers in registry.requests}
    return shown - {""}


@pytest.mark.parametrize("redirected", [PATHS[:1], PATHS[1:], PATHS], ids=["manifest", "blobs", "all"])
async def test_token_of_the_second_registry_is_fetched_without_credentials(
    manager: ImageManager, redirected: tuple[str, ...]
) -> None:
    with registries(*redirected) as (first, second):
        ours, theirs = Guard(first, FIRST), Guard(second, SECOND)
        first.answers["/token"], second.answers["/token"] = ours.give, theirs.give
        assert await _pull(manager, first) == IMAGE.id
    assert ours.shown == [f"Basic {USER.basic()}"] and set(theirs.shown) == {""}
    assert theirs.scopes[0] == [f"repository:{SECOND}:pull"]
    assert _secrets(second) == {f"Bearer {SECOND}"}
    assert _secrets(first) == {f"Basic {USER.basic()}", f"Bearer {FIRST}"}


async def test_known_token_of_the_second_registry_is_shown_at_once(manager: ImageManager) -> None:
    with registries(*PATHS) as (first, second):
        theirs = Guard(second, SECOND)
        second.answers["/token"] = theirs.give
        await _pull(manager, first)
        # One challenge for the manifest; config and layer come with the token.
        assert len(theirs.shown) == 1
        assert len(second.requests) == 1 + 1 + len(PATHS)


async def test_third_host_may_give_the_token(manager: ImageManager) -> None:
    """As in containerd, if the rules for addresses and realms allow the host."""
    with registries(LAYER) as (first, second), LyingRegistry("none", "1", IMAGE) as third:
        ours = Guard(first, FIRST)
        theirs = Guard(second, SECOND, realm=f"http://{third.netloc}/token")
        first.answers["/token"], third.answers["/token"] = ours.give, theirs.give
        assert await _pull(manager, first) == IMAGE.id
        assert [path for path in third.paths() if path != "/token"] == []
    assert _secrets(third) == set()
    assert _secrets(second) == {f"Bearer {SECOND}"}


async def test_realm_of_the_second_registry_on_a_private_address_is_not_asked(manager: ImageManager) -> None:
    with registries(LAYER) as (first, second):
        Guard(second, SECOND, realm="http://169.254.169.254/computeMetadata/token")
        with pytest.raises(Denied, match=r"169\.254\.169\.254.*images\.private_targets"):
            await _pull(manager, first)
    assert _secrets(second) == set()


@pytest.mark.parametrize("token", ["the same", "a new one each time"])
async def test_pull_ends_if_second_registry_accepts_no_token(manager: ImageManager, token: str) -> None:
    with registries(LAYER) as (first, second):
        ours, theirs = Guard(first, FIRST), Guard(second, SECOND)

        def renew(handler: BaseHTTPRequestHandler) -> None:
            theirs.token = f"{SECOND}-{len(theirs.shown)}" if "new" in token else SECOND
            theirs.give(handler)

        first.answers["/token"], second.answers["/token"] = ours.give, renew
        second.answers[LAYER.replace("app", "other")] = theirs.refuse
        with pytest.raises(Denied, match=f"redirected to http://{second.netloc}: access is denied") as caught:
            await _pull(manager, first)
        assert SECOND not in str(caught.value)
        assert len(second.requests) < 20


async def test_second_registry_asking_for_a_password_gets_none(manager: ImageManager) -> None:
    with registries(LAYER) as (first, second):
        second.answers[LAYER.replace("app", "other")] = status(401, WWW_Authenticate='Basic realm="x"')
        with pytest.raises(Denied, match=f"redirected to http://{second.netloc}: access is denied"):
            await _pull(manager, first)
    assert _secrets(second) == set()


@pytest.mark.parametrize("code", [403, 404, 500])
async def test_refusal_names_the_second_registry(manager: ImageManager, code: int) -> None:
    with registries(LAYER) as (first, second):
        second.answers[LAYER.replace("app", "other")] = status(code)
        with pytest.raises(Exception, match=second.netloc) as caught:
            await _pull(manager, first)
        assert first.netloc in str(caught.value)


async def test_three_chained_registries_each_get_their_own_token(manager: ImageManager) -> None:
    with registries(LAYER) as (first, second), LyingRegistry("third", "1", IMAGE) as third:
        beyond = f"http://{third.netloc}{LAYER.replace('app', 'third')}"
        second.answers[LAYER.replace("app", "other")] = status(307, Location=beyond)
        guards = [Guard(one, f"token-{number}") for number, one in enumerate((first, second, third))]
        for one, guard in zip((first, second, third), guards, strict=True):
            one.answers["/token"] = guard.give
        assert await _pull(manager, first) == IMAGE.id
        for one, guard in zip((second, third), guards[1:], strict=True):
            assert guard.shown == [""] and _secrets(one) == {f"Bearer {guard.token}"}

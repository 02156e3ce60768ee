"""CRI's AuthConfig: all its forms, and no secret in any text."""

from __future__ import annotations

import base64

import pytest

from daemonkit.faults import Invalid
from images.registry.credentials import ANONYMOUS, Credentials
from images.rpc.cri_messages import credentials_from
from xenpod_proto.cri.v1.runtime_pb2 import AuthConfig


def _encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


@pytest.mark.parametrize(
    ("auth", "expected"),
    [
        (AuthConfig(), ANONYMOUS),
        (AuthConfig(username="u", password="p:q"), Credentials("u", "p:q")),
        (AuthConfig(auth=_encoded("u:p:q\0\0")), Credentials("u", "p:q")),
        (AuthConfig(username="u", password="p", auth=_encoded("x:y")), Credentials("u", "p")),
        (AuthConfig(identity_token="t"), Credentials(identity_token="t")),
        (AuthConfig(registry_token="t", username="u"), Credentials(registry_token="t")),
        (
            AuthConfig(username="u", server_address="https://index.docker.io/v1/"),
            Credentials("u", server="docker.io"),
        ),
        (
            AuthConfig(username="u", server_address="r.example:5000"),
            Credentials("u", server="r.example:5000"),
        ),
    ],
)
def test_all_forms_of_credentials_are_read(auth: AuthConfig, expected: Credentials) -> None:
    assert credentials_from(auth) == expected


@pytest.mark.parametrize("text", ["%%%", _encoded("nocolon"), _encoded(":p"), "//79/A=="])
def test_malformed_auth_is_refused_without_being_shown(text: str) -> None:
    with pytest.raises(Invalid) as caught:
        credentials_from(AuthConfig(auth=text))
    assert text not in str(caught.value)
    with pytest.raises(Invalid):
        credentials_from(AuthConfig(registry_token="a\r\nb: c"))


def test_no_text_shows_a_secret() -> None:
    text = repr(Credentials("user", "p4ss", "idt0ken", "regt0ken"))
    assert "user" in text
    assert not any(secret in text for secret in ("p4ss", "idt0ken", "regt0ken"))


def test_credentials_serve_their_own_registry_alone() -> None:
    free, bound = Credentials("u", "p"), Credentials("u", "p", server="docker.io")
    assert free.serve("docker.io", "mirror.example")
    assert bound.serve("docker.io", "registry-1.docker.io")
    assert not bound.serve("quay.io", "quay.io")
    assert not ANONYMOUS.serve("docker.io", "x")


def test_callers_are_told_apart() -> None:
    made = [
        Credentials("a", "b"),
        Credentials("a", "c"),
        Credentials("ab", ""),
        ANONYMOUS,
        Credentials("a", "b", server="x"),
    ]
    assert len({one.fingerprint() for one in made}) == len(made)

"""Image names: forms used in practice, and refused forms."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemonkit.faults import Invalid
from images.registry import names

D = "sha256:" + "a1" * 32


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("busybox", "docker.io/library/busybox:latest"),
        ("busybox:1.36", "docker.io/library/busybox:1.36"),
        ("user/app", "docker.io/user/app:latest"),
        ("docker.io/busybox", "docker.io/library/busybox:latest"),
        ("index.docker.io/library/busybox:1", "docker.io/library/busybox:1"),
        ("localhost/app", "localhost/app:latest"),
        ("localhost:5000/app:v1", "localhost:5000/app:v1"),
        ("registry.k8s.io/pause:3.9", "registry.k8s.io/pause:3.9"),
        ("127.0.0.1:5000/a/b/c", "127.0.0.1:5000/a/b/c:latest"),
        ("[::1]:5000/a:x", "[::1]:5000/a:x"),
        (f"busybox@{D}", f"docker.io/library/busybox@{D}"),
        (f"busybox:1@{D}", f"docker.io/library/busybox@{D}"),
        (f"gcr.io/a/b:tag@{D}", f"gcr.io/a/b@{D}"),
        ("gcr.io/a__b/c-d.e", "gcr.io/a__b/c-d.e:latest"),
        ("a/b:Tag_1.2-3", "docker.io/a/b:Tag_1.2-3"),
    ],
)
def test_names_are_brought_to_their_normal_form(text: str, normal: str) -> None:
    reference = names.parse(text)
    assert str(reference) == normal
    assert names.parse(normal) == reference


@pytest.mark.parametrize(
    "text",
    [
        "",
        "/",
        "a//b",
        "a/",
        "/a",
        "UPPER/app/Name",
        "a:",
        "a:b:c",
        "a@",
        "a@sha256:abc",
        "a@sha256:" + "A1" * 32,
        "a@md5:" + "a" * 32,
        f"a@{D}@{D}",
        "a:" + "t" * 129,
        "a:-x",
        "../etc/passwd",
        "a/../b",
        "a b",
        "a\n",
        "a\0b",
        "host:port/a",
        "host:123456/a",
        "-host.io/a",
        "host..io/a",
        "https://docker.io/a",
        "x" * 300,
        "ä/b",
        "a_/b",
        "a1" * 32,
        "user:pass@host.io/a",
    ],
)
def test_invalid_names_are_refused(text: str) -> None:
    with pytest.raises(Invalid):
        names.parse(text)


@given(st.text(alphabet="aA0.:/@-_ \n%?#", max_size=40))
def test_any_text_is_parsed_or_refused(text: str) -> None:
    try:
        reference = names.parse(text)
    except Invalid:
        return
    assert names.parse(str(reference)) == reference
    assert (reference.tag is None) != (reference.digest is None)
    assert not set(str(reference)) & set(" \n?#%")
    assert ".." not in str(reference).split("/")

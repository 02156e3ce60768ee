"""Image names in the common grammar.

Grammar: github.com/distribution/reference. Normalised as in Docker and containerd: ``busybox`` is
``docker.io/library/busybox:latest``, and a name with both a tag and a digest keeps the digest alone.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from daemonkit.faults import Invalid
from images.bounds.digests import is_digest

DEFAULT_HOST = "docker.io"
MAX_NAME = 255

_LABEL = r"(?:[a-zA-Z0-9]|[a-zA-Z0-9][a-zA-Z0-9-]*[a-zA-Z0-9])"
_HOST = re.compile(rf"(?:{_LABEL}(?:\.{_LABEL})*|\[[0-9a-fA-F:]+\])(?::[0-9]{{1,5}})?\Z")
_PART = re.compile(r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*\Z")
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}\Z")
_ID = re.compile(r"[0-9a-f]{64}\Z")


@dataclass(frozen=True)
class Reference:
    """A normalised name: either tag or digest is set."""

    host: str
    repository: str
    tag: str | None
    digest: str | None

    @property
    def name(self) -> str:
        """Host and repository, "docker.io/library/busybox"."""
        return f"{self.host}/{self.repository}"

    @property
    def target(self) -> str:
        """The digest or the tag, for requests to a registry."""
        target = self.digest or self.tag
        assert target is not None
        return target

    def at(self, digest: str) -> str:
        """The name pinned to a digest, "docker.io/library/busybox@sha256:..."."""
        return f"{self.name}@{digest}"

    def __str__(self) -> str:
        return f"{self.name}@{self.digest}" if self.digest else f"{self.name}:{self.tag}"


def parse(untrusted_text: str) -> Reference:
    """Parse and normalise a user's image name.

    Raises Invalid for anything outside the grammar, a bare image id included.
    """

    def wrong(cause: str) -> Invalid:
        return Invalid("parse image name", repr(untrusted_text[:300]), cause)

    if _ID.match(untrusted_text):
        raise wrong("is an image id, not a name")
    rest, digest = _split_digest(untrusted_text)
    if digest is not None and not is_digest(digest):
        raise wrong("the digest is not sha256 or sha512 in lower-case hexadecimal")
    rest, tag = _split_tag(rest)
    if tag is not None and not _TAG.match(tag):
        raise wrong("the tag has a character outside [A-Za-z0-9_.-], or is longer than 128")
    host, repository = _split_host(rest)
    if not _HOST.match(host):
        raise wrong("the registry host is malformed")
    if not all(_PART.match(part) for part in repository.split("/")):
        raise wrong("the repository has an empty part or a character outside [a-z0-9._-]")
    if len(host) + 1 + len(repository) > MAX_NAME:
        raise wrong(f"the name is longer than {MAX_NAME}")
    if digest is not None:
        return Reference(host, repository, None, digest)
    return Reference(host, repository, tag or "latest", None)


def _split_digest(text: str) -> tuple[str, str | None]:
    rest, at, digest = text.partition("@")
    return (rest, digest) if at else (text, None)


def _split_tag(text: str) -> tuple[str, str | None]:
    head, colon, tail = text.rpartition(":")
    # A colon before the last slash belongs to the host's port.
    return (head, tail) if colon and "/" not in tail else (text, None)


def _split_host(text: str) -> tuple[str, str]:
    first, slash, rest = text.partition("/")
    if not slash or not ("." in first or ":" in first or first == "localhost" or first != first.lower()):
        first, rest = DEFAULT_HOST, text
    if first == "index.docker.io":
        first = DEFAULT_HOST
    if first == DEFAULT_HOST and "/" not in rest:
        rest = f"library/{rest}"
    return first, rest

"""Finds the hosts for a registry's images, by containerd's ``certs.d/<host>/hosts.toml``.

Source: containerd docs/hosts.md and core/remotes/docker/config. Host tables are tried in order, then the
server; without a file the registry itself is asked (plain http on the local host).
"""

from __future__ import annotations

import ipaddress
import logging
import re
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from daemonkit.faults import Refused

log = logging.getLogger(__name__)

DOCKER_HUB = ("docker.io", "registry-1.docker.io")
PULL, RESOLVE = "pull", "resolve"
_CAPABILITIES = frozenset({PULL, RESOLVE, "push", "referrers"})
_HOST_KEYS = frozenset(
    {"capabilities", "ca", "client", "skip_verify", "header", "override_path", "dial_timeout"}
)
_FILE_KEYS = _HOST_KEYS | {"server", "host"}
# Go's time.ParseDuration, without a sign.
_GO_DURATION = re.compile(r"(?:[0-9]{1,9}(?:\.[0-9]{0,9})?(?:ns|us|µs|μs|ms|s|m|h))+", re.ASCII)
_GO_PART = re.compile(r"([0-9.]+)([a-zµμ]+)")
_GO_UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_MAX_SECONDS = 24 * 3600.0
_MAX_FILE_BYTES = 1 << 20
_MAX_HOSTS = 64


@dataclass(frozen=True)
class ClientPair:
    """A client certificate; a key of None is in the same file."""

    certificate: Path
    key: Path | None


@dataclass(frozen=True)
class RegistryHost:
    """A host to ask. path: the prefix of the repository, "/v2" or another with override_path."""

    scheme: str
    netloc: str
    path: str = "/v2"
    capabilities: frozenset[str] = _CAPABILITIES
    ca: tuple[Path, ...] = ()
    clients: tuple[ClientPair, ...] = ()
    skip_verify: bool = False
    headers: tuple[tuple[str, str], ...] = ()
    # Whether the host is a mirror of the registry in the image's name: requests then name the registry
    # (``ns``).
    mirror: bool = False
    # Longest time for a connection, in seconds; None: from the images' settings.
    dial_seconds: float | None = None

    def __str__(self) -> str:
        return f"{self.scheme}://{self.netloc}{self.path.removesuffix('/v2')}"


def hosts_for(registry: str, certs_dir: Path) -> tuple[RegistryHost, ...]:
    """The hosts for a registry's images, in order; at least one. Raises Refused for a broken file."""
    own = _own_host(registry)
    for directory in _directories(registry, certs_dir):
        file = directory / "hosts.toml"
        if file.is_file():
            return _read_hosts(file, registry, own)
        if directory.is_dir():
            return (_with_certificates(own, directory),)
    return (own,)


def _directories(registry: str, certs_dir: Path) -> list[Path]:
    name, colon, port = registry.rpartition(":")
    names = [f"{name}_{port}_"] if colon and port.isdigit() else []
    return [certs_dir / directory for directory in (*names, registry, "_default")]


def _own_host(registry: str) -> RegistryHost:
    if registry == DOCKER_HUB[0]:
        return RegistryHost("https", DOCKER_HUB[1])
    return RegistryHost("http" if _is_local(registry) else "https", registry)


def _is_local(registry: str) -> bool:
    name = urlsplit(f"//{registry}").hostname or ""
    if name == "localhost":
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def _with_certificates(own: RegistryHost, directory: Path) -> RegistryHost:
    """Docker's older convention: bare certificate files in the host's directory."""
    ca = tuple(sorted(directory.glob("*.crt")))
    clients = tuple(ClientPair(c, c.with_suffix(".key")) for c in sorted(directory.glob("*.cert")))
    return replace(own, scheme="https" if ca or clients else own.scheme, ca=ca, clients=clients)


def _read_hosts(file: Path, registry: str, own: RegistryHost) -> tuple[RegistryHost, ...]:
    try:
        if file.stat().st_size > _MAX_FILE_BYTES:
            raise _wrong(file, "is larger than 1 MiB")
        document = tomllib.loads(file.read_text("utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise _wrong(file, str(error)) from error
    except RecursionError as error:
        raise _wrong(file, "is nested too deeply") from error
    tables = document.get("host", {})
    if not isinstance(tables, dict) or not all(isinstance(table, dict) for table in tables.values()):
        raise _wrong(file, "host is not a table of tables")
    if len(tables) > _MAX_HOSTS:
        raise _wrong(file, f"{len(tables)} hosts, more than {_MAX_HOSTS}")
    _warn_of_unknown(file, "", document.keys() - _FILE_KEYS)
    for url, table in tables.items():
        _warn_of_unknown(file, url, table.keys() - _HOST_KEYS)
    hosts = [_host(url, table, file, registry) for url, table in tables.items()]
    server = document.get("server")
    top = {key: value for key, value in document.items() if key not in ("host", "server")}
    if server is not None and not isinstance(server, str):
        raise _wrong(file, "server is not a string")
    last = _host(server or f"{own.scheme}://{own.netloc}", top, file, registry)
    return (*hosts, last)


def _host(url: str, table: dict[str, Any], file: Path, registry: str) -> RegistryHost:
    text = url if "://" in url else f"https://{url}"
    try:
        parts = urlsplit(text)
        parts.port  # noqa: B018  # a malformed port only shows when it is asked for
    except ValueError as error:
        raise _wrong(file, f"{url!r}: {error}") from error
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.username:
        raise _wrong(file, f"{url!r} is no http or https URL of a host")
    netloc = DOCKER_HUB[1] if parts.netloc == DOCKER_HUB[0] else parts.netloc
    path = parts.path.rstrip("/")
    if not _flag(table, "override_path", file) and not path.endswith("/v2"):
        path += "/v2"
    named = _strings(table.get("capabilities", []), "capabilities", file)
    # No capabilities mean all, as in containerd.
    capabilities = frozenset(name.lower() for name in named) or _CAPABILITIES
    if capabilities - _CAPABILITIES:
        raise _wrong(file, f"unknown capabilities {sorted(capabilities - _CAPABILITIES)}")
    return RegistryHost(
        parts.scheme,
        netloc,
        path,
        capabilities,
        tuple(_path(name, file) for name in _strings(table.get("ca", []), "ca", file)),
        _clients(table.get("client", []), file),
        _flag(table, "skip_verify", file),
        _headers(table.get("header", {}), file),
        netloc not in (registry, _own_host(registry).netloc),
        _duration(table.get("dial_timeout", ""), file),
    )


def _warn_of_unknown(file: Path, url: str, keys: Iterable[str]) -> None:
    for key in sorted(keys):
        _warn_once(file, f'[host."{url}"]' if url else "the file", key[:100])


@lru_cache(1024)
def _warn_once(file: Path, table: str, key: str) -> None:
    """Log a key without effect; only once, although the files are read again for each pull."""
    log.warning("%s: unknown key %r in %s: it has no effect", file, key, table)


def _duration(value: Any, file: Path) -> float | None:
    """A duration in Go's format ("1m30s"), in seconds, at most a day; "" and 0 keep the default."""
    text = value.strip() if isinstance(value, str) else None
    if text in ("", "0"):
        return None
    if text is None or not _GO_DURATION.fullmatch(text):
        raise _wrong(file, f"dial_timeout: {value!r} is not a duration such as 1s")
    seconds = sum(float(number) * _GO_UNITS[unit] for number, unit in _GO_PART.findall(text))
    # Sockets accept only bounded numbers.
    return min(seconds, _MAX_SECONDS) or None


def _flag(table: dict[str, Any], key: str, file: Path) -> bool:
    value = table.get(key, False)
    if not isinstance(value, bool):
        raise _wrong(file, f"{key} is not true or false")
    return value


def _strings(value: Any, key: str, file: Path) -> list[str]:
    values = [value] if isinstance(value, str) else value
    if not isinstance(values, list) or not all(isinstance(item, str) for item in values):
        raise _wrong(file, f"{key} is not a string or a list of strings")
    return values


def _clients(value: Any, file: Path) -> tuple[ClientPair, ...]:
    if not isinstance(value, str | list):
        raise _wrong(file, "client is not a string or a list")
    pairs: list[ClientPair] = []
    for item in [value] if isinstance(value, str) else value:
        names = _strings(item, "client", file)
        if not 1 <= len(names) <= 2:
            raise _wrong(file, "client is not a certificate, or a pair of certificate and key")
        key = _path(names[1], file) if len(names) == 2 and names[1] else None
        pairs.append(ClientPair(_path(names[0], file), key))
    return tuple(pairs)


def _headers(value: Any, file: Path) -> tuple[tuple[str, str], ...]:
    if not isinstance(value, dict):
        raise _wrong(file, "header is not a table")
    headers = [(name, text) for name, texts in value.items() for text in _strings(texts, "header", file)]
    for name, text in headers:
        if not re.fullmatch(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+", name) or not text.isprintable():
            raise _wrong(file, f"the header {name!r} cannot be sent")
    return tuple(headers)


def _path(name: str, file: Path) -> Path:
    return file.parent / name


def _wrong(file: Path, cause: str) -> Refused:
    return Refused("read", str(file), cause, "see containerd's docs/hosts.md for its form")

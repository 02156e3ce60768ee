"""The data that a worker needs to talk to the registries of one pull; the worker can open no file."""

from __future__ import annotations

import ssl
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from images.bounds.fields import FieldReader, FieldWriter
from images.image_settings import ImageSettings
from images.registry.credentials import Credentials
from images.registry.hosts import RegistryHost
from images.registry.manifests import Platform
from images.registry.names import Reference


class TrustFiles(NamedTuple):
    """Contents of files, all PEM: trust anchors of the system, a host's own, and client certificates.

    clients: each with its key, b"" if the key is in the same file. fault: why a file could not be read.
    """

    anchors: bytes = b""
    authorities: tuple[bytes, ...] = ()
    clients: tuple[tuple[bytes, bytes], ...] = ()
    fault: str = ""


class Briefing(NamedTuple):
    """The image, credentials and hosts of one pull; settings: only those for a conversation.

    platform: the platform to choose from an index; layers: limit on an image's layers.
    """

    reference: Reference
    credentials: Credentials
    hosts: tuple[tuple[RegistryHost, TrustFiles], ...]
    settings: ImageSettings
    platform: Platform
    layers: int


def brief(
    reference: Reference,
    credentials: Credentials,
    hosts: tuple[RegistryHost, ...],
    settings: ImageSettings,
    platform: Platform,
) -> Briefing:
    """Read the files of all hosts; an unreadable file makes only its host unusable."""
    trusted = tuple((host, _trust(host)) for host in hosts)
    return Briefing(reference, credentials, trusted, settings, platform, settings.limits.layers)


def _trust(host: RegistryHost) -> TrustFiles:
    try:
        return TrustFiles(
            _anchors(),
            tuple(path.read_bytes() for path in host.ca),
            tuple((c.certificate.read_bytes(), c.key.read_bytes() if c.key else b"") for c in host.clients),
        )
    except OSError as error:
        return TrustFiles(fault=str(error))


def _anchors() -> bytes:
    """The system's trust anchors."""
    paths = ssl.get_default_verify_paths()
    if paths.cafile:
        return _kept(Path(paths.cafile), Path(paths.cafile).stat().st_mtime_ns)
    folder = Path(paths.capath) if paths.capath else None
    return b"\n".join(file.read_bytes() for file in sorted(folder.glob("*.0"))) if folder else b""


@lru_cache(1)
def _kept(file: Path, changed: int) -> bytes:
    return file.read_bytes()


def pack(briefing: Briefing) -> bytes:
    """A briefing as bytes; contains secrets."""
    out = FieldWriter()
    reference, secret, settings = briefing.reference, briefing.credentials, briefing.settings
    wanted = briefing.platform
    for text in (reference.host, reference.repository, reference.tag or "", reference.digest or ""):
        out.text(text)
    out.texts([secret.username, secret.password, secret.identity_token, secret.registry_token, secret.server])
    out.text(str(settings.certs_dir))
    out.texts(settings.private_targets)
    for number in (settings.downloads_per_image, settings.tries_per_host):
        out.number(number)
    for seconds in (
        settings.connect_seconds,
        settings.stall_seconds,
        settings.retry_seconds,
        settings.retry_most_seconds,
    ):
        out.text(repr(seconds))
    out.texts([wanted.os, wanted.architecture, wanted.variant])
    out.number(briefing.layers)
    out.number(len(briefing.hosts))
    for host, trust in briefing.hosts:
        _put_host(out, host, trust)
    return out.done()


def unpack(data: bytes) -> Briefing:
    """The inverse of pack()."""
    fields = FieldReader(data)
    reference = Reference(fields.text(), fields.text(), fields.text() or None, fields.text() or None)
    credentials = Credentials(*fields.texts())
    settings = ImageSettings(
        state_dir=Path("/"),
        certs_dir=Path(fields.text()),
        private_targets=tuple(fields.texts()),
        downloads_per_image=fields.number(),
        tries_per_host=fields.number(),
        connect_seconds=float(fields.text()),
        stall_seconds=float(fields.text()),
        retry_seconds=float(fields.text()),
        retry_most_seconds=float(fields.text()),
    )
    platform, layers = Platform(*fields.texts()), fields.number()
    hosts = tuple(_take_host(fields) for _ in range(fields.number()))
    fields.end()
    return Briefing(reference, credentials, hosts, settings, platform, layers)


def _put_host(out: FieldWriter, host: RegistryHost, trust: TrustFiles) -> None:
    out.texts([host.scheme, host.netloc, host.path, repr(host.dial_seconds or 0.0)])
    out.number(host.skip_verify)
    out.number(host.mirror)
    for names in zip(*host.headers, strict=True) if host.headers else ((), ()):
        out.texts(names)
    out.text(trust.fault)
    out.data(trust.anchors)
    for datas in (trust.authorities, [part for pair in trust.clients for part in pair]):
        out.number(len(datas))
        for data in datas:
            out.data(data)


def _take_host(fields: FieldReader) -> tuple[RegistryHost, TrustFiles]:
    scheme, netloc, path, dial = fields.texts()
    skip_verify, mirror = bool(fields.number()), bool(fields.number())
    headers = tuple(zip(fields.texts(), fields.texts(), strict=True))
    host = RegistryHost(
        scheme,
        netloc,
        path,
        skip_verify=skip_verify,
        headers=headers,
        mirror=mirror,
        dial_seconds=float(dial) or None,
    )
    fault, anchors = fields.text(), fields.data()
    authorities = tuple(fields.data() for _ in range(fields.number()))
    parts = [fields.data() for _ in range(fields.number())]
    clients = tuple(zip(parts[::2], parts[1::2], strict=True))
    return host, TrustFiles(anchors, authorities, clients, fault)

"""The documents of an image as the daemon sees them: read in a worker, then bounded values."""

from __future__ import annotations

from typing import Any, NamedTuple

from images.bounds.digests import is_digest
from images.bounds.fields import FieldReader, FieldWriter, Malformed
from images.registry.manifests import (
    ACCEPTED,
    LAYER_TYPES,
    Descriptor,
    ImageConfig,
    Manifest,
    Platform,
)

_TYPE, _NAME = 255, 64
_RUN_TEXTS = ("User", "WorkingDir", "StopSignal")
_RUN_LISTS = ("Env", "Cmd", "Entrypoint")
_RUN_SETS = ("Volumes", "ExposedPorts")
_RUN_MAPS = ("Labels",)
_ABOUT = ("created", "author")


class IndexFacts(NamedTuple):
    """An index: media type, and the entry for the wanted platform."""

    kind: str
    chosen: Descriptor


class ManifestFacts(NamedTuple):
    """An image manifest with its media type."""

    kind: str
    manifest: Manifest


class ImageFacts(NamedTuple):
    """An image's manifest and configuration; the store keeps them beside the raw documents."""

    manifest: ManifestFacts
    config: ImageConfig


def pack_document(facts: IndexFacts | ManifestFacts) -> bytes:
    """The facts as bytes."""
    out = FieldWriter()
    _put_document(out, facts)
    return out.done()


def unpack_document(untrusted: bytes) -> IndexFacts | ManifestFacts:
    """The inverse of pack_document(); raises Malformed."""
    fields = FieldReader(untrusted)
    found = _take_document(fields)
    fields.end()
    return found


def pack_config(config: ImageConfig) -> bytes:
    """A configuration as bytes."""
    out = FieldWriter()
    _put_config(out, config)
    return out.done()


def unpack_config(untrusted: bytes) -> ImageConfig:
    """The inverse of pack_config(); raises Malformed."""
    fields = FieldReader(untrusted)
    found = _take_config(fields)
    fields.end()
    return found


def pack_image(facts: ImageFacts) -> bytes:
    """Both documents as bytes."""
    out = FieldWriter()
    _put_document(out, facts.manifest)
    _put_config(out, facts.config)
    return out.done()


def unpack_image(untrusted: bytes) -> ImageFacts:
    """The inverse of pack_image(); raises Malformed."""
    fields = FieldReader(untrusted)
    manifest, config = _take_document(fields), _take_config(fields)
    fields.end()
    if not isinstance(manifest, ManifestFacts) or len(manifest.manifest.layers) != len(config.diff_ids):
        raise Malformed("a manifest and a configuration do not fit")
    return ImageFacts(manifest, config)


def _put_document(out: FieldWriter, facts: IndexFacts | ManifestFacts) -> None:
    out.text(facts.kind)
    if isinstance(facts, IndexFacts):
        out.number(0)
        _put_descriptor(out, facts.chosen)
        return
    out.number(1 + len(facts.manifest.layers))
    for one in (facts.manifest.config, *facts.manifest.layers):
        _put_descriptor(out, one)


def _take_document(fields: FieldReader) -> IndexFacts | ManifestFacts:
    kind, count = fields.text(_TYPE), fields.number()
    if kind not in ACCEPTED:
        raise Malformed("an unknown media type")
    first = _take_descriptor(fields)
    if count == 0:
        return IndexFacts(kind, first)
    layers = tuple(_take_descriptor(fields) for _ in range(count - 1))
    if any(layer.media_type not in LAYER_TYPES for layer in layers):
        raise Malformed("an unknown type of a layer")
    return ManifestFacts(kind, Manifest(first, layers))


def _put_descriptor(out: FieldWriter, one: Descriptor) -> None:
    out.text(one.media_type)
    out.text(one.digest)
    out.number(one.size)
    _put_platform(out, one.platform or Platform("", ""))


def _take_descriptor(fields: FieldReader) -> Descriptor:
    media_type, digest, size = fields.text(_TYPE), fields.text(_TYPE), fields.number()
    if not is_digest(digest) or size >= 1 << 62:
        raise Malformed("a descriptor without a digest or a size")
    platform = _take_platform(fields)
    return Descriptor(media_type, digest, size, platform if platform.os else None)


def _put_platform(out: FieldWriter, platform: Platform) -> None:
    for text in (platform.os, platform.architecture, platform.variant):
        out.text(text)


def _take_platform(fields: FieldReader) -> Platform:
    return Platform(fields.text(_NAME), fields.text(_NAME), fields.text(_NAME))


def _put_config(out: FieldWriter, config: ImageConfig) -> None:
    _put_platform(out, config.platform)
    out.texts(config.diff_ids)
    for key in _ABOUT:
        out.text(config.document.get(key, ""))
    run = config.document.get("config", {})
    for keys, put in ((_RUN_TEXTS, out.text), (_RUN_LISTS, out.texts), (_RUN_SETS, out.texts)):
        known = [key for key in keys if key in run]
        out.texts(known)
        for key in known:
            put(run[key])
    known = [key for key in _RUN_MAPS if key in run]
    out.texts(known)
    for key in known:
        out.texts(run[key])
        out.texts(run[key].values())


def _take_config(fields: FieldReader) -> ImageConfig:
    platform = _take_platform(fields)
    diff_ids = tuple(fields.texts())
    if not all(map(is_digest, diff_ids)):
        raise Malformed("a diff id that is no digest")
    about = {key: text for key in _ABOUT if (text := fields.text())}
    run: dict[str, Any] = {}
    for key in _known(fields, _RUN_TEXTS):
        run[key] = fields.text()
    for key in _known(fields, _RUN_LISTS):
        run[key] = fields.texts()
    for key in _known(fields, _RUN_SETS):
        run[key] = {name: {} for name in fields.texts()}
    for key in _known(fields, _RUN_MAPS):
        names, values = fields.texts(), fields.texts()
        if len(names) != len(values):
            raise Malformed(f"{key} with names without values")
        run[key] = dict(zip(names, values, strict=True))
    return ImageConfig(platform, diff_ids, document(platform, diff_ids, about, run))


def _known(fields: FieldReader, keys: tuple[str, ...]) -> list[str]:
    found = fields.texts()
    if not set(found) <= set(keys):
        raise Malformed("an unknown key of a configuration")
    return found


def document(
    platform: Platform, diff_ids: tuple[str, ...], about: dict[str, str], run: dict[str, Any]
) -> dict[str, Any]:
    """A configuration in the form of OCI's JSON, with the members used in xenpod."""
    named = {"os": platform.os, "architecture": platform.architecture, "variant": platform.variant}
    said = about | {key: text for key, text in named.items() if text}
    return said | {"config": run, "rootfs": {"type": "layers", "diff_ids": list(diff_ids)}}


def known_part(untrusted: dict[str, Any]) -> tuple[dict[str, str], dict[str, Any]]:
    """The used members of a configuration, if well typed: general ones, and the run settings."""
    about = {key: text for key in _ABOUT if isinstance(text := untrusted.get(key), str)}
    inner = untrusted.get("config") or {}
    run: dict[str, Any] = {key: text for key in _RUN_TEXTS if isinstance(text := inner.get(key), str)}
    for key in _RUN_LISTS:
        if isinstance(listed := inner.get(key), list):
            run[key] = [word for word in listed if isinstance(word, str)]
    for key in (*_RUN_SETS, *_RUN_MAPS):
        if isinstance(named := inner.get(key), dict):
            texts = {name: text for name, text in named.items() if isinstance(text, str)}
            run[key] = texts if key in _RUN_MAPS else {name: {} for name in named}
    return about, run

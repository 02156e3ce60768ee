"""Facts from a registry's process are used if the document confirms them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from images.bounds.cancel import CancelToken
from images.bounds.digests import digest_of
from images.bounds.limits import ImageLimits
from images.pull.fetch import Document, read_manifest, read_tagged
from images.registry import claims, reading
from images.registry.facts import IndexFacts, ManifestFacts, pack_document
from images.registry.manifests import (
    DOCKER_MANIFEST,
    OCI_INDEX,
    OCI_MANIFEST,
    Descriptor,
    Manifest,
    Platform,
)
from images.registry.names import parse
from images.registry.sources import GivenManifest
from images.worker.documents import DocumentReader
from images.worker.workers import LayerWorkers
from tests.support.images.images import Layer, build, index_of

AMD64 = Platform("linux", "amd64")
IMAGE = build([Layer().file("f").tar(), Layer().file("g").tar()])
OTHER = build([Layer().file("evil").tar()])
LAYERS = 10


def _facts(data: bytes) -> IndexFacts | ManifestFacts:
    return reading.read_document(data, "", "x", AMD64, LAYERS)


def _manifest(data: bytes) -> Manifest:
    facts = _facts(data)
    assert isinstance(facts, ManifestFacts)
    return facts.manifest


MINE, ITS = _manifest(IMAGE.manifest), _manifest(OTHER.manifest)


def _packed(config: Descriptor = MINE.config, layers: tuple[Descriptor, ...] = MINE.layers) -> bytes:
    return pack_document(ManifestFacts(OCI_MANIFEST, Manifest(config, layers)))


@pytest.mark.parametrize("indent", [None, 3])
@pytest.mark.parametrize("data", [IMAGE.manifest, index_of([IMAGE.descriptor])], ids=["manifest", "index"])
def test_sound_facts_of_a_small_document_are_used(data: bytes, indent: int | None) -> None:
    document = json.dumps(json.loads(data), indent=indent).encode()
    found = claims.borne_out(document, pack_document(_facts(document)), LAYERS)
    assert found is not None and pack_document(found) == pack_document(_facts(document))


@pytest.mark.parametrize(
    "lie",
    [
        pack_document(_facts(OTHER.manifest)),
        pack_document(IndexFacts(OCI_INDEX, Descriptor(OCI_MANIFEST, OTHER.descriptor["digest"], 1))),
        _packed(config=ITS.config),
        _packed(layers=ITS.layers),
        _packed(layers=MINE.layers * LAYERS),
        b"",
        b"nonsense",
    ],
    ids=["another image", "another index", "configuration", "layers", "more layers", "nothing", "nonsense"],
)
def test_a_lie_about_a_manifest_is_not_used(lie: bytes) -> None:
    assert claims.borne_out(IMAGE.manifest, lie, LAYERS) is None


def test_a_digest_in_an_annotation_is_none_of_the_document() -> None:
    base = OTHER.descriptor["digest"]
    document = json.loads(IMAGE.manifest) | {"annotations": {"org.opencontainers.image.base.digest": base}}
    lie = IndexFacts(OCI_INDEX, Descriptor(OCI_MANIFEST, base, 1))
    assert claims.borne_out(json.dumps(document).encode(), pack_document(lie), LAYERS) is None


def test_facts_of_a_long_document_are_not_used() -> None:
    document = IMAGE.manifest + b" " * claims.MAX_DOCUMENT_BYTES
    assert claims.borne_out(document, pack_document(_facts(document)), LAYERS) is None


@given(st.data())
def test_facts_used_have_digests_of_the_document_alone(data: st.DataObject) -> None:
    mangled = bytearray(_packed())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(mangled)))
        mangled[at : at + data.draw(st.integers(0, 9))] = data.draw(st.binary(max_size=9))
    found = claims.borne_out(IMAGE.manifest, bytes(mangled), LAYERS)
    if isinstance(found, ManifestFacts):
        for one in (found.manifest.config, *found.manifest.layers):
            assert one.digest.encode() in IMAGE.manifest


class _Source:
    """A source whose process states the given facts."""

    name, resolves = "registry", True

    def __init__(self, given: GivenManifest) -> None:
        self._given = given

    def manifest(self, target: str, most: int, token: CancelToken) -> GivenManifest:
        return self._given

    @contextmanager
    def blob(self, descriptor: Descriptor, token: CancelToken, begin: int = 0) -> Iterator[Iterator[bytes]]:
        yield iter(())


@pytest.fixture(scope="module")
def reader() -> Iterator[DocumentReader]:
    workers = LayerWorkers(ImageLimits())
    yield DocumentReader(workers, AMD64)
    workers.close()


def _tagged(reader: DocumentReader, given: GivenManifest) -> Document:
    reference = parse("registry.example/app:1")
    return read_tagged(reference, ImageLimits(), reader, _Source(given), CancelToken())


def test_a_lying_process_is_replaced(reader: DocumentReader) -> None:
    lie = pack_document(_facts(OTHER.manifest))
    found = _tagged(reader, GivenManifest(IMAGE.manifest, "", lie))
    assert pack_document(found.facts) == pack_document(_facts(IMAGE.manifest))


def test_sound_facts_take_no_other_process(reader: DocumentReader, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LayerWorkers, "run", None)
    sound = pack_document(_facts(IMAGE.manifest))
    assert _tagged(reader, GivenManifest(IMAGE.manifest, "", sound)).facts == _facts(IMAGE.manifest)


def test_a_manifest_has_the_type_in_its_index(reader: DocumentReader) -> None:
    untyped = json.loads(IMAGE.manifest)
    untyped.pop("mediaType", None)
    data = json.dumps(untyped).encode()
    given = GivenManifest(data, OCI_MANIFEST, pack_document(_facts(data)))
    promised = Descriptor(DOCKER_MANIFEST, digest_of(data), len(data))
    found = read_manifest(promised, ImageLimits(), reader, _Source(given), CancelToken())
    assert found.facts.kind == DOCKER_MANIFEST

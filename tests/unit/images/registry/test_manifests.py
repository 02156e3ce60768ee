"""Manifests, indexes and configurations from strangers."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daemonkit.faults import Fault, Invalid, Missing
from images.image_errors import Corrupt, Oversized
from images.registry import manifests
from images.registry.manifests import (
    DOCKER_INDEX,
    DOCKER_MANIFEST,
    MAX_TOKENS,
    OCI_INDEX,
    OCI_MANIFEST,
    Descriptor,
    Platform,
)
from tests.support.images.images import Layer, build

D = "sha256:" + "0" * 64
AMD64 = Platform("linux", "amd64")
MANIFEST: dict[str, Any] = json.loads(build([Layer().file("f").tar()]).manifest)


def test_a_manifest_is_parsed() -> None:
    parsed = manifests.manifest(MANIFEST, "x", 10)
    assert parsed.config.digest == MANIFEST["config"]["digest"]
    assert [layer.size for layer in parsed.layers] == [MANIFEST["layers"][0]["size"]]


@pytest.mark.parametrize(
    ("document", "said", "kind"),
    [
        ({"mediaType": OCI_MANIFEST, "layers": [], "config": {}}, "", OCI_MANIFEST),
        ({"mediaType": DOCKER_INDEX, "manifests": []}, "text/plain", DOCKER_INDEX),
        ({"manifests": []}, OCI_INDEX, OCI_INDEX),
        ({"manifests": []}, f"{DOCKER_INDEX}; charset=utf-8", DOCKER_INDEX),
        ({"manifests": []}, "", OCI_INDEX),
        ({"layers": [], "config": {}}, "application/json", OCI_MANIFEST),
        ({"layers": [], "config": {}}, DOCKER_MANIFEST, DOCKER_MANIFEST),
    ],
)
def test_the_kind_of_a_document_is_recognized(document: dict[str, Any], said: str, kind: str) -> None:
    assert manifests.kind_of(document, said, "x") == kind


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ({"mediaType": OCI_MANIFEST, "manifests": [], "layers": []}, ""),
        ({"mediaType": OCI_INDEX, "layers": [], "config": {}}, ""),
        ({"layers": [], "config": {}}, OCI_INDEX),
        ({"mediaType": "application/x"}, OCI_MANIFEST + "x"),
        ({"schemaVersion": 1, "fsLayers": []}, ""),
        ({}, ""),
    ],
)
def test_ambiguous_or_unknown_kinds_are_refused(document: dict[str, Any], said: str) -> None:
    with pytest.raises(Fault):
        manifests.kind_of(document, said, "x")


@pytest.mark.parametrize(
    "untrusted",
    [
        None,
        [],
        {},
        {"mediaType": 5, "digest": D, "size": 1},
        {"mediaType": "x", "digest": "sha256:../../x", "size": 1},
        {"mediaType": "x", "digest": D.upper(), "size": 1},
        {"mediaType": "x", "digest": D, "size": -1},
        {"mediaType": "x", "digest": D, "size": True},
        {"mediaType": "x", "digest": D, "size": "1"},
        {"mediaType": "x", "digest": D, "size": 1 << 62},
        {"mediaType": "x", "digest": D, "size": 1, "annotations": [1]},
    ],
)
def test_descriptors_without_content_are_refused(untrusted: object) -> None:
    with pytest.raises(Corrupt):
        manifests.descriptor(untrusted, "x")


def test_too_many_layers_or_manifests_are_refused() -> None:
    layers = [MANIFEST["layers"][0]] * 11
    with pytest.raises(Oversized):
        manifests.manifest(MANIFEST | {"layers": layers}, "x", 10)
    with pytest.raises(Oversized):
        manifests.index_entries({"manifests": [{}] * 1001}, "x")


@pytest.mark.parametrize(
    "change",
    [
        {"artifactType": "application/x"},
        {"config": MANIFEST["config"] | {"mediaType": "application/vnd.oci.empty.v1+json"}},
        {"layers": [MANIFEST["layers"][0] | {"mediaType": "application/vnd.cncf.helm.chart"}]},
        {
            "layers": [
                MANIFEST["layers"][0] | {"mediaType": "application/vnd.oci.image.layer.v1.tar+encrypted"}
            ]
        },
    ],
)
def test_artifacts_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(Invalid):
        manifests.manifest(MANIFEST | change, "x", 10)


def _entry(os: str, architecture: str, variant: str = "", media_type: str = OCI_MANIFEST) -> Descriptor:
    return Descriptor(
        media_type, D, 1, Platform(os, architecture, variant), (("n", f"{architecture}{variant}"),)
    )


@pytest.mark.parametrize(
    "untrusted",
    [
        b'{"x":[' + b"{}," * MAX_TOKENS + b"{}]}",
        b'{"x":[' + b'"",' * MAX_TOKENS + b'""]}',
        b'{"x":"' + b'\\"' * 10 + b'"' + b',"y":1' * MAX_TOKENS + b"}",
        b'"' * 3 * MAX_TOKENS,
    ],
    ids=["objects", "texts", "members", "no JSON"],
)
def test_documents_of_more_values_than_an_image_has_are_refused(untrusted: bytes) -> None:
    with pytest.raises(Corrupt, match=f"more than {MAX_TOKENS} values"):
        manifests.parse_json(untrusted, "x")


@pytest.mark.parametrize("text", ["{[,", '"', "\\", '\\"', "\\\\{"])
def test_values_of_documents_are_counted_outside_of_texts(text: str) -> None:
    document = {"label": text * MAX_TOKENS}
    assert manifests.parse_json(json.dumps(document).encode(), "x") == document


@pytest.mark.parametrize("untrusted", [b'{"x": "\\ud800"}', b'{"x": "\\uDFFF"}', b'{"x": "\xed\xa0\x80"}'])
def test_texts_with_half_a_surrogate_pair_are_refused(untrusted: bytes) -> None:
    with pytest.raises(Corrupt, match="is not JSON"):
        manifests.parse_json(untrusted, "x")


@pytest.mark.parametrize(
    ("wanted", "there", "chosen"),
    [
        (AMD64, [("windows", "amd64"), ("linux", "arm64"), ("linux", "amd64")], "amd64"),
        (AMD64, [("linux", "amd64", "v1"), ("linux", "amd64")], "amd64"),
        (AMD64, [("linux", "amd64", "v3"), ("linux", "amd64", "v1")], "amd64v1"),
        (Platform("linux", "arm64"), [("linux", "arm64"), ("linux", "arm64", "v8")], "arm64v8"),
        (
            Platform("linux", "arm"),
            [("linux", "arm", "v5"), ("linux", "arm", "v7"), ("linux", "arm", "v6")],
            "armv7",
        ),
        (Platform("linux", "arm", "v6"), [("linux", "arm", "v7"), ("linux", "arm", "v6")], "armv6"),
    ],
)
def test_the_entry_of_the_platform_is_chosen(
    wanted: Platform, there: list[tuple[str, ...]], chosen: str
) -> None:
    entries = tuple(_entry(*platform) for platform in there)
    assert manifests.choose(entries, wanted, "x").annotation("n") == chosen


def test_no_platform_fits() -> None:
    with pytest.raises(Missing, match="linux/arm64"):
        manifests.choose((_entry("linux", "arm64"), _entry("unknown", "unknown")), AMD64, "x")
    with pytest.raises(Missing):
        manifests.choose((), AMD64, "x")
    with pytest.raises(Missing):
        manifests.choose((_entry("linux", "amd64", media_type="application/x"),), AMD64, "x")


@pytest.mark.parametrize(
    "document",
    [
        {},
        {"rootfs": []},
        {"rootfs": {"diff_ids": "x"}},
        {"rootfs": {"diff_ids": []}},
        {"rootfs": {"diff_ids": [D, D]}},
        {"rootfs": {"diff_ids": ["x"]}},
        {"rootfs": {"diff_ids": [D]}, "config": []},
        [],
        5,
    ],
)
def test_mismatched_configurations_are_refused(document: object) -> None:
    with pytest.raises(Corrupt):
        manifests.config(json.dumps(document).encode(), "x", 1)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8) | st.just(D) | st.just(OCI_MANIFEST),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "config",
                    "layers",
                    "manifests",
                    "digest",
                    "size",
                    "mediaType",
                    "platform",
                    "os",
                    "rootfs",
                    "diff_ids",
                ]
            ),
            inner,
            max_size=5,
        )
    ),
    max_leaves=20,
)


@settings(max_examples=300, deadline=None)
@given(_JSON)
def test_any_document_is_read_or_refused(untrusted: object) -> None:
    data = json.dumps(untrusted).encode()
    for read in (
        lambda: manifests.manifest(manifests.parse_json(data, "x"), "x", 10),
        lambda: manifests.choose(manifests.index_entries(manifests.parse_json(data, "x"), "x"), AMD64, "x"),
        lambda: manifests.kind_of(manifests.parse_json(data, "x"), OCI_MANIFEST, "x"),
        lambda: manifests.config(data, "x", 1),
    ):
        try:
            read()
        except Fault:
            continue

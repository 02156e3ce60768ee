"""Answers of workers under hostile control."""

from __future__ import annotations

import socket
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemonkit import faults
from daemonkit.faults import Broken, Fault
from images import image_errors
from images.bounds.cancel import CancelToken
from images.bounds.fields import FieldReader, FieldWriter, Malformed
from images.image_errors import Busy, Cancelled, Interrupted, Stalled
from images.image_settings import ImageSettings
from images.registry import briefing, facts, reading
from images.registry.briefing import Briefing, TrustFiles
from images.registry.claims import MAX_CLAIMS_BYTES
from images.registry.credentials import Credentials
from images.registry.exchange import (
    Ending,
    Question,
    fault_of,
    outcome,
    send_end,
    send_fault,
    unpack_question,
)
from images.registry.hosts import RegistryHost
from images.registry.manifests import OCI_CONFIG, Descriptor, Platform
from images.registry.names import Reference
from images.registry.sources import RegistrySource
from tests.support.images.images import Layer, build

DIGEST = "sha256:" + "0" * 64
AMD64 = Platform("linux", "amd64")
IMAGE = build([Layer().file("f").tar()], {"Env": ["A=b"], "Labels": {"x": "y"}, "Volumes": {"/v": {}}})


def _pair() -> tuple[socket.socket, socket.socket]:
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


@pytest.mark.parametrize(
    "fault",
    [
        faults.Missing("pull", "x", "no such image"),
        Busy("pull", "x", "503", "h", 2.5, True),
        Interrupted("pull", "x", "broke off", after=None),
        image_errors.Misdelivered("pull", "x", "\ud800"),
        faults.Unreachable("pull", "x", "c" * 100_000),
    ],
)
def test_a_fault_arrives_as_the_same_kind(fault: Fault) -> None:
    mine, its = _pair()
    with mine, its:
        send_fault(its, fault)
        with pytest.raises(type(fault)) as raised:
            outcome(mine)
    assert type(raised.value) is type(fault)
    assert raised.value.subject == "x" and len(raised.value.cause) <= 3000
    if isinstance(fault, Busy) and isinstance(raised.value, Busy):
        assert (raised.value.after, raised.value.overloaded) == (2.5, True)


@given(st.binary(max_size=400))
def test_any_answer_of_a_worker_is_a_value_or_a_fault(message: bytes) -> None:
    mine, its = _pair()
    with mine, its:
        its.send(message)
        its.shutdown(socket.SHUT_WR)
        try:
            ending = outcome(mine)
        except (Fault, Malformed, EOFError):
            return
    assert len(ending.media_type) <= 255 and ending.media_type.isprintable()


def test_an_ending_arrives_unchanged() -> None:
    mine, its = _pair()
    ending = Ending("application/json", b"c" * MAX_CLAIMS_BYTES)
    with mine, its:
        send_end(its, ending)
        assert outcome(mine) == ending


@given(st.binary(max_size=200))
def test_any_bytes_of_a_fault_give_a_fault_or_an_error(data: bytes) -> None:
    try:
        fault = fault_of(data)
    except Malformed:
        return
    assert isinstance(fault, Fault)


class _Told:
    """A conversation that answers with given bytes, and a message."""

    def __init__(self, data: bytes, message: bytes | None, ends: bool = True) -> None:
        self._data, self._message, self._ends = data, message, ends
        self.open: list[socket.socket] = []

    def ask(self, question: Question) -> tuple[socket.socket, socket.socket]:
        stream, its_stream = socket.socketpair()
        ending, its_ending = _pair()
        its_stream.sendall(self._data)
        if self._message is not None:
            its_ending.send(self._message)
        self.open += [its_stream, its_ending]
        if self._ends:
            its_stream.close()
            its_ending.close()
        return stream, ending

    def ended(self, subject: str) -> Fault:
        return Broken("talk to registry", subject, "the process ended")


def _source(told: _Told, seconds: float = 60.0) -> RegistrySource:
    settings = ImageSettings(Path("/nowhere"), document_seconds=seconds)
    reference = Reference("r.example", "app", "1", None)
    return RegistrySource(0, RegistryHost("https", "r.example"), reference, settings, told)


@given(st.binary(max_size=300), st.none() | st.binary(max_size=100))
def test_any_answer_to_a_question_is_bytes_or_a_fault(data: bytes, message: bytes | None) -> None:
    try:
        found = _source(_Told(data, message or None)).manifest("1", 200, CancelToken())
    except Fault:
        return
    assert found.data == data and len(data) <= 200 and found.media_type.isprintable()


@pytest.mark.parametrize("kind", ["manifest", "configuration"])
def test_a_slow_document_times_out(kind: str) -> None:
    """The stream has begun, and has no announced end."""
    told = _Told(b"{", None, ends=False)
    source, token = _source(told, 0.05), CancelToken()
    with pytest.raises(Stalled, match="no whole answer"):
        if kind == "manifest":
            source.manifest("1", 200, token)
        with source.blob(Descriptor(OCI_CONFIG, DIGEST, 200), token) as pieces:
            for _ in pieces:
                pass
    for link in told.open:
        link.close()


def test_a_cancelled_question_hangs_up() -> None:
    told, token = _Told(b"{", None, ends=False), CancelToken()
    thread = threading.Timer(0.05, token.cancel)
    thread.start()
    with pytest.raises(Cancelled):
        _source(told).manifest("1", 200, token)
    thread.join()
    assert told.open[0].recv(1) == b""
    for link in told.open:
        link.close()


def test_a_question_and_a_briefing_arrive_as_they_were() -> None:
    question = Question(3, DIGEST, 1 << 40, 17, True)
    assert unpack_question(question.pack()) == question
    host = RegistryHost("https", "r.example:5000", "/p", skip_verify=True, headers=(("A", "b"), ("C", "d")))
    trust = TrustFiles(b"anchors", (b"one",), ((b"cert", b""), (b"cert", b"key")), "a fault")
    reference = Reference("r.example", "app", None, DIGEST)
    secret = Credentials("me", "secret", server="r.example")
    hosts = ((host, trust), (RegistryHost("http", "m"), TrustFiles()))
    told = Briefing(reference, secret, hosts, _settings(), Platform("linux", "arm", "v7"), 17)
    assert briefing.unpack(briefing.pack(told)) == told


def _settings() -> ImageSettings:
    return ImageSettings(Path("/"), Path("/certs"), private_targets=("10.0.0.0/8",), stall_seconds=1.25)


def test_an_images_facts_arrive_as_they_were() -> None:
    found = reading.read_image(IMAGE.manifest, IMAGE.config, "x", 10)
    assert facts.unpack_image(facts.pack_image(found)) == found
    assert found.config.document["config"] == {
        "Env": ["A=b"],
        "Labels": {"x": "y"},
        "Volumes": {"/v": {}},
    }


@given(st.data())
def test_facts_of_any_bytes_are_values_or_refused(data: st.DataObject) -> None:
    sound = facts.pack_image(reading.read_image(IMAGE.manifest, IMAGE.config, "x", 10))
    mangled = bytearray(sound)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(mangled)))
        mangled[at : at + data.draw(st.integers(0, 9))] = data.draw(st.binary(max_size=9))
    for untrusted in (bytes(mangled), data.draw(st.binary(max_size=300))):
        for unpack in (facts.unpack_image, facts.unpack_config, facts.unpack_document):
            try:
                unpack(untrusted)
            except Malformed:
                continue


def test_a_false_number_of_texts_ends_with_the_bytes() -> None:
    out = FieldWriter()
    out.number(1 << 63)
    with pytest.raises(Malformed):
        FieldReader(out.done()).texts()


def test_a_configuration_with_large_facts_is_refused() -> None:
    image = build([Layer().tar()], {"Env": ["A=" + "x" * 1000] * 1100})
    with pytest.raises(image_errors.Oversized, match="environment"):
        reading.read_config(image.config, "x", 1)


def test_an_index_gives_the_entry_of_a_platform() -> None:
    from tests.support.images.images import index_of

    found = reading.read_document(index_of([IMAGE.descriptor]), "", "x", AMD64, 10)
    assert isinstance(found, facts.IndexFacts) and found.chosen.size == len(IMAGE.manifest)
    assert facts.unpack_document(facts.pack_document(found)) == found._replace(
        chosen=Descriptor(found.chosen.media_type, found.chosen.digest, found.chosen.size, AMD64)
    )

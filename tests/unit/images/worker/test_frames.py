"""Answers of workers are hostile: any bytes become a bounded value, or a fault of one pull."""

from __future__ import annotations

import io
import os
import socket
import threading
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import BinaryIO

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemonkit.faults import Broken, Fault
from images.bounds.cancel import CancelToken
from images.bounds.fields import FieldReader, FieldWriter
from images.image_errors import Corrupt
from images.layer.layers import Cost
from images.worker import wire
from images.worker.answer_frames import ANSWER, FAULT, FILES, HEAD, MOVED, JobOutcome
from images.worker.planning import LARGEST_INT64, StoredPlan, plan_decoder, read_cost
from images.worker.session import Pipe, Worker

MIB = 1 << 20
END = 4
"""Layers of the planned image."""


def _frame(kind: bytes, data: bytes = b"", size: int | None = None) -> bytes:
    return HEAD.pack(kind, len(data) if size is None else size) + data


def _planned(order: Sequence[int] = (3, 1), accounts: int = 1) -> FieldWriter:
    """The fields of a sound plan."""
    fields = FieldWriter().data(b"v" * 32).data(b"f" * 32).numbers(order).number(1000)
    fields.number(1).number(1).numbers([accounts])
    fields.number(1).number(0).numbers([])
    fields.number(0).number(0).numbers([])
    for number in range(4):
        fields.number(number)
    return fields


def _ask(
    said: bytes, outcome: JobOutcome | None = None, decode: Callable[[FieldReader], object] | None = None
) -> object:
    """The daemon's result for a worker with these bytes."""
    results, told = os.pipe()
    mine, its = socket.socketpair()
    source = os.open(os.devnull, os.O_WRONLY)

    def end(job: str, subject: str, status: int | None) -> Broken:
        return Broken(job, subject, f"ended with {status}")

    def say() -> None:
        try:
            wire.write_bytes(told, said)
        except BrokenPipeError:
            pass
        finally:
            os.close(told)

    its.close()
    saying = threading.Thread(target=say)
    saying.start()
    try:
        with closing(Worker("job", "subject", Pipe(source), Pipe(results), mine, end)) as worker:
            chosen = decode or plan_decoder(io.BytesIO(), io.BytesIO(), END)
            return worker.ask(None, CancelToken(), outcome or JobOutcome(), chosen)
    finally:
        saying.join()


def test_a_sound_plan_is_taken() -> None:
    plan = _ask(_frame(ANSWER, _planned().done()))
    assert isinstance(plan, StoredPlan)
    assert (plan.order, plan.file_bytes) == ((3, 1), 1000)
    assert plan.accounts == {"/etc/passwd": 1, "/etc/group": None}
    assert len(plan.lost) == 3


@pytest.mark.parametrize(
    ("said", "cause"),
    [
        (_frame(ANSWER, _planned((4,)).done()), "4 where at most 3"),
        (_frame(ANSWER, _planned((1, 3)).done()), "another order"),
        (_frame(ANSWER, _planned((1, 1)).done()), "another order"),
        (_frame(ANSWER, _planned((3, 2, 1, 0, 0)).done()), "5 where at most 4"),
        (_frame(ANSWER, _planned(accounts=4).done()), "4 where at most 3"),
        (_frame(ANSWER, _planned().number(1).done()), "bytes are left"),
        (_frame(ANSWER, _planned().done()[:-1]), "another field"),
        (_frame(ANSWER, FieldWriter().number(7).done()), "another field"),
        (_frame(ANSWER, FieldWriter().data(b"v" * 31).done()), "a field of 31 bytes"),
        (_frame(ANSWER, b"d" + (1 << 60).to_bytes(8, "little")), "a field of"),
        (_frame(ANSWER, b""), "another field"),
        (_frame(ANSWER, size=1 << 50), "a frame of kind"),
        (_frame(FAULT, size=1 << 50), "a frame of kind"),
        (_frame(FAULT, b"d"), "another field"),
        (_frame(b"9", b"x"), "a frame of kind"),
        (_frame(MOVED, b"x" * 9), "a frame of kind"),
        (_frame(MOVED, (2000).to_bytes(8, "little")), "2000 bytes more were copied"),
        (_frame(FILES[0], size=1 << 50), "a frame of kind"),
        (_frame(FILES[1], b"x"), "a frame of kind"),
        (_frame(FILES[0], b"x" * MIB) * 3, "a frame of kind"),
        (_frame(FILES[0]) * 1000, "a frame of kind"),
        (_frame(MOVED, bytes(8)) * 1000, "a frame of kind"),
    ],
)
def test_a_wrong_answer_breaks_its_pull_only(said: bytes, cause: str) -> None:
    file = io.BytesIO()
    with pytest.raises(Broken, match=f"job subject: .*wrong answer: .*{cause}"):
        _ask(said, JobOutcome([file], 2 * MIB, 0, lambda _: None, 1000))
    assert len(file.getvalue()) <= 2 * MIB


@pytest.mark.parametrize("said", [b"", b"A", _frame(ANSWER, size=9), _frame(FILES[0], b"x", 9)])
def test_a_worker_ended_midway_is_an_end(said: bytes) -> None:
    with pytest.raises(Broken, match="ended with None"):
        _ask(said, JobOutcome([io.BytesIO()], MIB))


def _complaint(error: Exception) -> bytes:
    results, told = os.pipe()
    wire.complain(told, error)
    os.close(told)
    with open(results, "rb") as file:
        return file.read()


def test_a_fault_keeps_its_kind_and_words() -> None:
    with pytest.raises(Corrupt, match=r"unpack layer: ends early \(ask\)"):
        _ask(_complaint(Corrupt("unpack", "layer", "ends early", "ask")))
    with pytest.raises(OSError, match="Errno 28"):
        _ask(_complaint(OSError(28, "No space left on device")))


@pytest.mark.parametrize("error", [KeyError("x"), OSError("no number"), Fault("a", "b", "c"), SystemExit()])
def test_an_unexpected_error_is_broken(error: Exception) -> None:
    with pytest.raises(Broken, match="a worker failed with"):
        _ask(_complaint(error))


def test_words_of_a_fault_are_bounded_and_printable() -> None:
    with pytest.raises(Corrupt) as raised:
        _ask(_complaint(Corrupt("a\nb", "\x1b[2J", "c" * 100_000)))
    assert str(raised.value).startswith("a?b ?[2J: ccc")
    assert len(str(raised.value)) < 5000


def _contents(answer: FieldReader) -> object:
    return [answer.flag(), answer.data(100), answer.text(100), answer.numbers(3, 3)]


_DECODERS: Sequence[Callable[[FieldReader], object]] = (
    plan_decoder(io.BytesIO(), io.BytesIO(), END),
    read_cost,
    _contents,
)
_SOUND = (
    _frame(FILES[0], b"plan") + _frame(ANSWER, _planned().done()),
    _frame(ANSWER, FieldWriter().number(1).number(2).number(3).number(4).done()),
    _frame(MOVED, (9).to_bytes(8, "little")) + _frame(FAULT, FieldWriter().data(b"Corrupt").done()),
)


@given(st.data())
def test_any_bytes_are_a_bounded_value_or_a_fault(data: st.DataObject) -> None:
    said = bytearray(data.draw(st.sampled_from(_SOUND)))
    for _ in range(data.draw(st.integers(0, 4))):
        at = data.draw(st.integers(0, len(said) - 1))
        kind = data.draw(st.sampled_from(["change", "cut", "more"]))
        if kind == "change":
            said[at] = data.draw(st.integers(0, 255))
        elif kind == "cut":
            del said[at : at + data.draw(st.integers(1, 16))]
        else:
            said[at:at] = data.draw(st.binary(max_size=16))
        said = said or bytearray(b"A")
    file: BinaryIO = io.BytesIO()
    try:
        value = _ask(
            bytes(said), JobOutcome([file], 64, 0, lambda _: None, 100), data.draw(st.sampled_from(_DECODERS))
        )
    except (Fault, OSError):
        return
    if isinstance(value, StoredPlan):
        assert all(number < END for number in value.order)
        assert value.file_bytes <= LARGEST_INT64
    elif isinstance(value, Cost):
        assert all(0 <= number <= LARGEST_INT64 for number in value)

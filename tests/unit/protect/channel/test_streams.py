"""Credit, offsets and resumption: no byte lost, repeated or over credit, across any reconnects."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from protect.channel.frames import WINDOW
from protect.channel.streams import FARTHEST, Credit, DataChunk, Receiver, Sender
from protect.channel.table import NumberSet
from protect.model.errors import ProtocolViolation


def pattern(at: int, size: int) -> bytes:
    """Bytes that show their position."""
    return bytes((n * 7 + n // 251) % 256 for n in range(at, at + size))


class Stream(RuleBasedStateMachine):
    """A stream from a Sender to a Receiver, over connections that break with frames under way."""

    def __init__(self) -> None:
        super().__init__()
        self.sender = Sender(fresh=True)
        self.receiver = Receiver(fresh=True)
        self.written = 0
        self.got = bytearray()
        self.pieces: list[DataChunk] = []
        self.credits: list[Credit] = []
        self.up = True
        self.closed = False

    @rule(size=st.integers(1, 70_000))
    @precondition(lambda self: not self.closed)
    def write(self, size: int) -> None:
        size = min(size, self.sender.space)
        self.sender.add(pattern(self.written, size))
        self.written += size

    @rule()
    @precondition(lambda self: not self.closed)
    def close(self) -> None:
        self.sender.close()
        self.closed = True
        assert self.sender.space == 0

    @rule(most=st.sampled_from([1, 100, 16_384]))
    @precondition(lambda self: self.up)
    def send(self, most: int) -> None:
        ready = self.sender.ready
        piece = self.sender.take(most)
        assert (piece is not None) == ready
        if piece is not None:
            assert len(piece.content) <= most
            assert piece.content or piece.fin
            self.pieces.append(piece)

    @rule()
    @precondition(lambda self: self.pieces)
    def deliver(self) -> None:
        piece = self.pieces.pop(0)
        self.got += self.receiver.data(piece.offset, piece.content, piece.fin)
        self._grant()

    @rule(share=st.floats(0, 1))
    def consume(self, share: float) -> None:
        ahead = self.receiver.delivered - self.receiver.consumed
        self.receiver.consume(self.receiver.consumed + round(ahead * share))
        self._grant()

    @rule()
    @precondition(lambda self: self.credits)
    def deliver_credit(self) -> None:
        self.sender.credit(self.credits.pop(0))

    @rule()
    @precondition(lambda self: self.up)
    def cut(self) -> None:
        self.up = False
        self.pieces.clear()
        self.credits.clear()
        self.sender.disconnected()
        self.receiver.disconnected()

    @rule()
    @precondition(lambda self: not self.up)
    def connect(self) -> None:
        self.up = True
        self.credits.append(self.receiver.resume())

    @rule()
    @precondition(lambda self: not self.up)
    def receiver_restarts(self) -> None:
        """The receiver's process is new, and knows only the consumed bytes."""
        del self.got[self.receiver.consumed :]
        self.receiver = Receiver(self.receiver.consumed, fresh=False)

    def _grant(self) -> None:
        due = self.receiver.due()
        if due is not None:
            assert due.consumed <= due.limit <= due.consumed + WINDOW
            self.credits.append(due)

    @invariant()
    def nothing_lost_repeated_or_over_credit(self) -> None:
        assert self.got == pattern(0, len(self.got))
        assert len(self.got) == self.receiver.delivered <= self.written
        assert self.receiver.delivered - self.receiver.consumed <= WINDOW
        assert self.sender.unconsumed <= WINDOW

    def teardown(self) -> None:
        """After any events, a lasting connection delivers all bytes."""
        if not self.up:
            self.connect()
        if not self.closed:
            self.close()
        for _ in range(1000):
            if self.receiver.ended and self.receiver.consumed == self.written:
                break
            self.send(16_384)
            while self.pieces:
                self.deliver()
            self.consume(1.0)
            while self.credits:
                self.deliver_credit()
        assert self.receiver.ended and self.got == pattern(0, self.written)


TestStream = Stream.TestCase
TestStream.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)


@given(st.lists(st.tuples(st.integers(0, 200_000), st.integers(0, 66_000), st.booleans()), max_size=20))
def test_a_hostile_sender_never_gets_over_its_credit(frames: list[tuple[int, int, bool]]) -> None:
    receiver = Receiver(fresh=True)
    held = 0
    for offset, size, fin in frames:
        try:
            held += len(receiver.data(offset, b"x" * size, fin))
        except ProtocolViolation:
            pass
        assert held == receiver.delivered <= WINDOW


@given(
    st.integers(0, 80_000),
    st.lists(st.tuples(st.integers(0, 200_000), st.integers(0, WINDOW), st.booleans()), max_size=20),
)
def test_a_hostile_receiver_gets_only_existing_bytes(size: int, credits: list[tuple[int, int, bool]]) -> None:
    sender = Sender(fresh=True)
    size = min(size, sender.space)
    sender.add(pattern(0, size))
    for consumed, window, reconnect in credits:
        if reconnect:
            sender.disconnected()
        try:
            sender.credit(Credit(consumed, consumed + window))
        except ProtocolViolation:
            pass
        while (piece := sender.take(16_384)) is not None:
            assert piece.content == pattern(piece.offset, len(piece.content))
            assert piece.offset + len(piece.content) <= size


class TestReceiver:
    def test_data_without_credit_is_a_violation(self) -> None:
        with pytest.raises(ProtocolViolation, match="without credit"):
            Receiver(fresh=False).data(0, b"x", False)

    def test_data_after_a_reconnect_needs_credit_again(self) -> None:
        receiver = Receiver(fresh=True)
        receiver.disconnected()
        with pytest.raises(ProtocolViolation):
            receiver.data(0, b"x", False)

    @pytest.mark.parametrize("offset", [0, 2, 1 << 63])
    def test_a_wrong_offset_is_a_violation(self, offset: int) -> None:
        receiver = Receiver(fresh=True)
        receiver.data(0, b"x", False)
        with pytest.raises(ProtocolViolation, match="offset"):
            receiver.data(offset, b"y", False)

    def test_data_over_credit_is_a_violation(self) -> None:
        receiver = Receiver(fresh=True)
        receiver.data(0, b"x" * WINDOW, False)
        with pytest.raises(ProtocolViolation, match="credit"):
            receiver.data(WINDOW, b"y", False)

    def test_data_after_fin_is_a_violation(self) -> None:
        receiver = Receiver(fresh=True)
        receiver.data(0, b"x", True)
        with pytest.raises(ProtocolViolation, match="after FIN"):
            receiver.data(1, b"", True)

    @pytest.mark.parametrize(("content", "fin"), [(b"xyz", False), (b"xyz", True), (b"x", True)])
    def test_another_end_after_a_reconnect(self, content: bytes, fin: bool) -> None:
        receiver = Receiver(fresh=True)
        receiver.data(0, b"xy", True)
        receiver.disconnected()
        receiver.resume()
        with pytest.raises(ProtocolViolation):
            receiver.data(0, content, fin)

    def test_an_end_before_received_bytes_is_a_violation(self) -> None:
        receiver = Receiver(fresh=True)
        receiver.data(0, b"xyz", False)
        receiver.disconnected()
        receiver.resume()
        with pytest.raises(ProtocolViolation, match="behind"):
            receiver.data(0, b"x", True)

    def test_consumed_is_within_the_received_bytes(self) -> None:
        receiver = Receiver(fresh=True)
        receiver.data(0, b"xyz", False)
        with pytest.raises(ValueError):
            receiver.consume(4)
        receiver.consume(3)
        with pytest.raises(ValueError):
            receiver.consume(2)


class TestSender:
    def test_a_new_process_begins_where_the_peer_says(self) -> None:
        sender = Sender(fresh=False)
        sender.add(b"abc")
        assert not sender.ready
        sender.credit(Credit(1000, 1002))
        assert sender.take(16_384) == DataChunk(1000, b"ab", False)

    @pytest.mark.parametrize(
        "credit", [Credit(6, 7), Credit(2, WINDOW - 1), Credit(1, WINDOW + 2), Credit(FARTHEST, FARTHEST + 1)]
    )
    def test_bad_credit_is_a_violation(self, credit: Credit) -> None:
        sender = Sender(fresh=True)
        sender.add(b"abcdef")
        sender.take(5)
        sender.credit(Credit(2, WINDOW + 2))
        with pytest.raises(ProtocolViolation):
            sender.credit(credit)

    def test_giving_up_frees_kept_bytes(self) -> None:
        sender = Sender(fresh=True)
        sender.add(b"abc")
        sender.credit(Credit(0, 0, fin=True))
        assert sender.over and sender.closed and sender.unconsumed == 0 and sender.space == 0
        assert sender.take(10) is None

    def test_more_than_the_window_is_not_kept(self) -> None:
        sender = Sender(fresh=True)
        with pytest.raises(ValueError):
            sender.add(b"x" * (WINDOW + 1))


@given(st.lists(st.integers(0, 60)))
def test_number_set_is_a_set(numbers: list[int]) -> None:
    kept = NumberSet()
    for number in numbers:
        kept.add(number)
    assert {n for n in range(62) if n in kept} == set(numbers)
    assert kept.ranges == sum(n - 1 not in set(numbers) for n in set(numbers))

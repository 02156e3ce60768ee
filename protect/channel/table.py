"""All streams of one boot of an agent: wanted streams, and streams to resume after a reconnect."""

from __future__ import annotations

from bisect import bisect_right

from daemonkit.faults import Missing
from daemonkit.loop.fair_scheduler import Share
from protect.channel import counts
from protect.channel.frames import Frame, credit_values, data_offset, violation
from protect.channel.ignored_frames import IgnoredFrames
from protect.channel.inputs import InputStream
from protect.channel.outputs import OutputStream
from protect.channel.streams import Credit
from protect.channel.wire import ChannelWire
from protect.model.ports import Sink
from xenpod_proto.channel.v1 import channel_pb2

MOST_STREAMS = 1536
"""Most streams known at once; an agent's processes and connections have at most 1,216."""
MOST_RANGES = 4096
"""Most ranges of used numbers.  An agent counts upwards; gaps are streams from before this process."""
GIVEN_UP = Credit(0, 0, fin=True)


class StreamTable:
    """Streams by number.  A number that the agent has not announced in this boot is a violation."""

    def __init__(self, share: Share) -> None:
        """``share``: the zone's turns for output to sinks."""
        self._share = share
        self._ignored = IgnoredFrames()
        self._inputs: dict[int, InputStream] = {}
        self._outputs: dict[int, OutputStream] = {}
        self._used = NumberSet()
        self._wire: ChannelWire | None = None
        self._resumed = False
        self._listed = False
        self._early: dict[int, Credit] = {}
        self._unwanted: set[int] = set()

    def connected(self, wire: ChannelWire) -> None:
        """Begin a connection; nothing is sent before ``resume``."""
        self._wire = wire
        self._resumed = self._listed = False

    def disconnected(self) -> None:
        """Note the end of the connection."""
        self._wire = None
        self._ignored.disconnected()
        self._early.clear()
        self._unwanted.clear()
        for output in self._outputs.values():
            output.receiver.disconnected()
        for source in self._inputs.values():
            source.sender.disconnected()

    def resume(self) -> None:
        """Ask for each output with a sink, and make the agent drop all others."""
        self._resumed = True
        for output in list(self._outputs.values()):
            if output.receiver.live:
                continue
            if output.sink is not None:
                self._send_credit(output.number, output.receiver.resume())
            elif not output.claimable:
                self.drop_output(output.number)
        for number in self._unwanted:
            self._send_credit(number, GIVEN_UP)
        self._unwanted.clear()

    def listed(self) -> None:
        """Note that the agent has listed every stream from before this connection."""
        self._listed = True
        self._early.clear()

    def announce(
        self, created: channel_pb2.ProcessCreated, *, listed: bool, fresh: bool, wanted: bool
    ) -> None:
        """Take the agent's (untrusted) announcement of a process's streams.

        ``listed``: in a ProcessList, which repeats known numbers.  ``fresh``: created in the current
        connection.  ``wanted``: the creating caller still waits.
        """
        outputs = [n for n in (created.stdout_stream, created.stderr_stream) if n]
        numbers = outputs + ([created.stdin_stream] if created.stdin_stream else [])
        if len(set(numbers)) != len(numbers):
            raise violation(f"streams {numbers} of one process are not different")
        for number in numbers:
            self._announce_one(number, number in outputs, listed, fresh)
            if wanted and number in self._outputs:
                self._outputs[number].claimable = True
        if len(self._outputs) + len(self._inputs) > MOST_STREAMS or self._used.ranges > MOST_RANGES:
            raise violation(f"more than {MOST_STREAMS} streams")

    def _announce_one(self, number: int, is_output: bool, listed: bool, fresh: bool) -> None:
        if number in (self._inputs if is_output else self._outputs):
            raise violation(f"stream {number} turned round")
        if number in self._used:
            if not listed:
                raise violation(f"stream {number} was used before")
            if is_output and number not in self._outputs and not self._resumed:
                self._unwanted.add(number)
        elif is_output:
            self._new_output(number, fresh)
        else:
            self._new_input(number, fresh)

    def _new_output(self, number: int, fresh: bool) -> OutputStream:
        output = OutputStream(number, fresh=fresh, credit=self._send_credit, share=self._share)
        output.forgotten = self.drop_output
        counts.STREAMS.inc()
        self._used.add(number)
        self._outputs[number] = output
        return output

    def _new_input(self, number: int, fresh: bool) -> InputStream:
        source = InputStream(number, fresh=fresh, ready=self._ready)
        counts.STREAMS.inc()
        self._used.add(number)
        self._inputs[number] = source
        early = self._early.pop(number, None)
        if early is not None:
            source.credit(early)
        return source

    def data(self, frame: Frame) -> None:
        """Take a DATA frame."""
        output = self._outputs.get(frame.stream)
        if output is not None:
            output.data(data_offset(frame), frame.payload[8:], frame.fin)
        elif frame.stream in self._inputs or frame.stream not in self._used:
            raise violation(f"DATA on stream {frame.stream}, which is no output")
        else:
            self._ignored.frame("DATA", len(frame.payload) - 8)

    def credit(self, frame: Frame) -> None:
        """Take a CREDIT frame.  Before the first list its stream may be still unannounced."""
        credit = Credit(*credit_values(frame), frame.fin)
        source = self._inputs.get(frame.stream)
        if source is not None:
            if source.sender.knows(credit):
                self._ignored.frame("CREDIT that says nothing new")
            source.credit(credit)
            if source.sender.over:
                del self._inputs[frame.stream]
        elif frame.stream in self._outputs:
            raise violation(f"CREDIT on stream {frame.stream}, which is no input")
        elif frame.stream not in self._used:
            if self._listed or len(self._early) >= MOST_STREAMS:
                raise violation(f"CREDIT on stream {frame.stream}, which was never used")
            if frame.stream in self._early:
                self._ignored.frame("CREDIT before the list")
            self._early[frame.stream] = credit
        else:
            self._ignored.frame("CREDIT")

    def output(self, number: int, sink: Sink, consumed: int) -> None:
        """Deliver a stream; an unknown stream is assumed to be of this boot."""
        output = self._outputs.get(number)
        if output is None:
            if number in self._used:
                raise Missing("read", f"stream {number}", "it has ended or was dropped")
            output = self._new_output(number, fresh=False)
        output.attach(sink, consumed)
        if self._resumed and self._wire is not None and not output.receiver.live:
            self._send_credit(number, output.receiver.resume())

    def drop_output(self, number: int) -> None:
        """Abandon a stream, or forget a finished stream.  An unknown stream is ignored."""
        output = self._outputs.pop(number, None)
        if output is None:
            return
        output.close()
        self._ignored.earn(output.receiver.outstanding)
        self._send_credit(number, GIVEN_UP)

    def input(self, number: int) -> InputStream:
        """The input for writing a stream; an unknown stream is assumed to be of this boot."""
        source = self._inputs.get(number)
        if source is None:
            if number in self._used:
                raise Missing("write", f"stream {number}", "the process closed it")
            source = self._new_input(number, fresh=False)
        return source

    def drop_input(self, number: int) -> None:
        """Abandon a stream whose process is removed: the agent forgets the stream without a message."""
        source = self._inputs.pop(number, None)
        if source is not None:
            self._ignored.earn(source.sender.unconsumed + 1)
            source.drop()

    def drop(self, made: channel_pb2.ProcessCreated) -> None:
        """Abandon all streams of a process."""
        for number in filter(None, (made.stdout_stream, made.stderr_stream)):
            self.drop_output(number)
        self.drop_input(made.stdin_stream)

    async def close(self, failure: Exception) -> None:
        """End all streams with the boot or the link: writers fail, sinks get no more bytes."""
        for source in self._inputs.values():
            source.fail(failure)
        for output in self._outputs.values():
            output.close()
        for output in list(self._outputs.values()):
            await output.closed()

    def _send_credit(self, number: int, credit: Credit) -> None:
        if self._wire is not None:
            self._wire.credit(number, credit)

    def _ready(self, source: InputStream) -> None:
        if self._wire is not None and source.sender.ready:
            self._wire.ready(source)


class NumberSet:
    """A set of numbers, kept as ranges: compact if numbers come mostly in order."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []

    @property
    def ranges(self) -> int:
        """The number of ranges."""
        return len(self._starts)

    def __contains__(self, number: int) -> bool:
        at = bisect_right(self._starts, number) - 1
        return at >= 0 and number < self._ends[at]

    def add(self, number: int) -> None:
        """Add a number; a second addition changes nothing."""
        if number in self:
            return
        at = bisect_right(self._starts, number)
        joins_left = at > 0 and self._ends[at - 1] == number
        joins_right = at < len(self._starts) and self._starts[at] == number + 1
        if joins_left and joins_right:
            self._ends[at - 1] = self._ends.pop(at)
            del self._starts[at]
        elif joins_left:
            self._ends[at - 1] = number + 1
        elif joins_right:
            self._starts[at] = number
        else:
            self._starts.insert(at, number)
            self._ends.insert(at, number + 1)

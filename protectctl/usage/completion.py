"""Completion of words for bash, zsh and fish, by argcomplete; ids and names come from the daemons."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence

import argcomplete
import argcomplete.shell_integration
import grpc.aio
from argcomplete.completers import BaseCompleter

from daemonkit.rpc.channels import channel
from protectctl.command_errors import Command
from protectctl.usage.verbs import named
from xenpod_proto.images.v1 import images_pb2, images_pb2_grpc
from xenpod_proto.protect.v1 import protect_pb2 as pb
from xenpod_proto.protect.v1 import protect_pb2_grpc, reservations_pb2, reservations_pb2_grpc

SHELLS = ("bash", "zsh", "fish")
_TIMEOUT_SECONDS = 2.0
"""Seconds; a user waits no longer for a word."""

Ask = Callable[[argparse.Namespace], Awaitable[Sequence[str]]]


def add_arguments(noun: argparse.ArgumentParser) -> None:
    named(noun, "completion").add_argument("shell", choices=SHELLS)
    noun.epilog = (
        "bash: protect completion bash >/etc/bash_completion.d/protect; "
        "zsh: protect completion zsh >/usr/local/share/zsh/site-functions/_protect; "
        "fish: protect completion fish >/etc/fish/completions/protect.fish"
    )


async def completion(options: argparse.Namespace) -> None:
    """Print the code for the shell to source."""
    sys.stdout.write(argcomplete.shell_integration.shellcode(["protect"], shell=options.shell) + "\n")


def complete(parser: argparse.ArgumentParser) -> None:
    """Answer the shell's request for words, and end."""
    for verb in _verbs(parser):
        command = str(verb.get_default("command") or "")
        for action in verb._actions:
            if ask := _asks(command, action.dest):
                action.completer = KnownWords(ask)  # type: ignore[attr-defined]  # argcomplete's own
    argcomplete.autocomplete(parser)


class KnownWords(BaseCompleter):
    """A daemon's known words; none if the daemon does not answer, because a shell has no place for errors."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask

    def __call__(
        self, *, prefix: str, action: argparse.Action, parser: argparse.ArgumentParser,
        parsed_args: argparse.Namespace,
    ) -> list[str]:  # fmt: skip
        async def asked() -> Sequence[str]:
            return await self._ask(parsed_args)

        try:
            return [word for word in asyncio.run(asked()) if word.startswith(prefix) and word.isprintable()]
        except grpc.aio.AioRpcError:
            return []


def _verbs(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for verb in action.choices.values():
                yield from _verbs(verb)


def _asks(command: str, dest: str) -> Ask | None:
    noun = command.partition(" ")[0]
    if dest in ("id", "ids") and noun in _OF_NOUN and command not in ("zone create", "reservation make"):
        return _OF_NOUN[noun]
    if noun == "image" and dest in ("image", "images", "names"):
        return _images
    return {"zone": _zones, "workload": _workloads, "device": _devices}.get(dest)


async def _zones(options: argparse.Namespace) -> Sequence[str]:
    async with channel(options.socket) as link:
        answer = await protect_pb2_grpc.ZonesStub(link).ListZones(
            pb.ListZonesRequest(), timeout=_TIMEOUT_SECONDS
        )
    return [word for zone in answer.zones for word in (zone.id, zone.name) if word]


async def _workloads(options: argparse.Namespace) -> Sequence[str]:
    async with channel(options.socket) as link:
        stub = protect_pb2_grpc.WorkloadsStub(link)
        answer = await stub.ListWorkloads(pb.ListWorkloadsRequest(), timeout=_TIMEOUT_SECONDS)
    return [one.id for one in answer.workloads]


async def _devices(options: argparse.Namespace) -> Sequence[str]:
    async with channel(options.socket) as link:
        stub = protect_pb2_grpc.DevicesStub(link)
        answer = await stub.ListDevices(pb.ListDevicesRequest(), timeout=_TIMEOUT_SECONDS)
    return [one.name or one.place for one in answer.devices]


async def _reservations(options: argparse.Namespace) -> Sequence[str]:
    async with channel(options.socket) as link:
        stub = reservations_pb2_grpc.ReservationsStub(link)
        request = reservations_pb2.ListReservationsRequest()
        answer = await stub.ListReservations(request, timeout=_TIMEOUT_SECONDS)
    return [one.id for one in answer.reservations]


async def _images(options: argparse.Namespace) -> Sequence[str]:
    async with channel(options.cri_socket) as link:
        answer = await images_pb2_grpc.ImagesStub(link).List(
            images_pb2.ListRequest(), timeout=_TIMEOUT_SECONDS
        )
    return [name for one in answer.images for name in (*one.tags, *one.digests)]


_OF_NOUN: dict[str, Ask] = {
    "zone": _zones,
    "workload": _workloads,
    "device": _zones,
    "reservation": _reservations,
}

COMMANDS: Mapping[str, Command] = {"completion": completion}

"""The nouns of ``protect``, each with the module of its arguments and commands.

A command imports only the module of its own noun, to start faster (docs/adr/0053).
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from protectctl.command_errors import Command


class NounModule(Protocol):
    """Contents of a noun's module."""

    COMMANDS: Mapping[str, Command]
    """The function of each command, by its whole name: ``zone list``."""

    def add_arguments(self, noun: argparse.ArgumentParser) -> None:
        """Add the verbs with their arguments; to a noun without verbs, its own arguments."""


@dataclass(frozen=True, slots=True)
class Noun:
    """The first word of commands."""

    text: str
    """Purpose of the noun, in the usage."""
    load: Callable[[], NounModule]


def command(name: str) -> Command:
    """The function of a command."""
    return NOUNS[name.partition(" ")[0]].load().COMMANDS[name]


def _zone() -> NounModule:
    from protectctl.zone import noun

    return noun


def _workload() -> NounModule:
    from protectctl.zone import workloads

    return workloads


def _device() -> NounModule:
    from protectctl.host import devices

    return devices


def _reservation() -> NounModule:
    from protectctl.host import reservations

    return reservations


def _host() -> NounModule:
    from protectctl.host import noun

    return noun


def _watch() -> NounModule:
    from protectctl.zone import watch

    return watch


def _image() -> NounModule:
    from protectctl.image import noun

    return noun


def _generate() -> NounModule:
    from protectctl.cluster import generate

    return generate


def _audit() -> NounModule:
    from protectctl.host import audit

    return audit


def _doctor() -> NounModule:
    from protectctl.host import doctor

    return doctor


def _completion() -> NounModule:
    from protectctl.usage import completion

    return completion


def _schema() -> NounModule:
    from protectctl.usage import schema

    return schema


NOUNS: Mapping[str, Noun] = {
    "zone": Noun(
        "list, inspect, create, pause, resize, destroy, adopt zones; show events, use and logs", _zone
    ),
    "workload": Noun("list, inspect workloads; run commands in them", _workload),
    "device": Noun("list, attach, detach devices of the host", _device),
    "reservation": Noun("list, make, bind, release reservations of memory", _reservation),
    "host": Noun("show the host: toolstack, memory, handlers, notices", _host),
    "watch": Noun("show all zones and workloads, then each change", _watch),
    "image": Noun("list, pull, import, export, tag, inspect, verify, remove images", _image),
    "generate": Noun("objects and flags for a cluster with nodes of this kind", _generate),
    "audit": Noun("check the audit logs", _audit),
    "doctor": Noun("check what this host needs to run zones, and show how to mend each fault", _doctor),
    "completion": Noun("print the code with which a shell completes this command", _completion),
    "schema": Noun("print the JSON Schema of a command's JSON and YAML", _schema),
}

"""The commands: the function of each."""

from __future__ import annotations

from collections.abc import Mapping

from protect.cli import generate
from protect.cli.errors import Command
from protect.cli.host import capacity, console, devices, doctor, info, overhead, reservations
from protect.cli.image import commands as images
from protect.cli.usage import completion, schema
from protect.cli.zone import commands as zones
from protect.cli.zone import create, events, execute, logs, lost, resize, top

COMMANDS: Mapping[str, Command] = {
    **zones.COMMANDS,
    **create.COMMANDS,
    resize.COMMAND: resize.resize,
    **execute.COMMANDS,
    **logs.COMMANDS,
    **events.COMMANDS,
    **top.COMMANDS,
    **lost.COMMANDS,
    **reservations.COMMANDS,
    "host": info.host,
    "host info": info.host,
    **capacity.COMMANDS,
    **overhead.COMMANDS,
    **console.COMMANDS,
    generate.COMMAND: generate.generate,
    **devices.COMMANDS,
    **images.COMMANDS,
    **doctor.COMMANDS,
    **completion.COMMANDS,
    **schema.COMMANDS,
}

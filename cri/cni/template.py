"""Makes a network configuration from a template and the kubelet's pod CIDR."""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from string import Template

import aiofiles
import aiofiles.os

from cri.cni.conf import parse
from daemonkit.convert import WrongKey
from daemonkit.faults import Broken, Invalid, Refused

NAME = "10-xenpod.conflist"
_WRITE = "write network configuration"
_ANY = {4: "0.0.0.0/0", 6: "::/0"}

_Network = ipaddress.IPv4Network | ipaddress.IPv6Network


def networks(pod_cidr: str) -> list[_Network]:
    """Parse "10.0.0.0/24", or several separated by commas; Invalid otherwise."""
    try:
        found = [ipaddress.ip_network(one.strip()) for one in pod_cidr.split(",")]
    except ValueError as error:
        raise Invalid("update runtime config", "pod_cidr", str(error)) from None
    return found


def check_template(key: str, path: Path) -> None:
    """WrongKey unless the file is a template of a configuration."""
    sample = networks("10.0.0.0/24")
    try:
        parse(Template(path.read_text()).substitute(_values(sample)), str(path))
    except (OSError, KeyError, ValueError) as error:
        raise WrongKey(key, f"{path} is not a template of a network configuration: {error}") from None


async def write_conflist(template: Path, directory: Path, cidrs: Sequence[_Network]) -> Path:
    """Fill the template in, and put the result into the directory of configurations.

    ``$POD_CIDR`` is the first network, ``$POD_CIDR_RANGES`` and ``$ROUTES`` are JSON arrays in host-local's
    format.  Refused if the result is no configuration.
    """
    path = directory / NAME
    text = await _filled(template, cidrs)
    try:
        parse(text, str(path))
    except ValueError as error:
        raise Refused(_WRITE, str(template), f"with the pod CIDR it is no configuration: {error}") from None
    try:
        await aiofiles.os.makedirs(directory, exist_ok=True)
        part = path.with_name(f".{NAME}.part")
        async with aiofiles.open(part, "w") as file:
            await file.write(text)
        await aiofiles.os.replace(part, path)
    except OSError as error:
        raise Broken(_WRITE, str(path), error.strerror or str(error)) from None
    return path


async def _filled(template: Path, cidrs: Sequence[_Network]) -> str:
    try:
        async with aiofiles.open(template) as file:
            return Template(await file.read()).substitute(_values(cidrs))
    except OSError as error:
        raise Refused(_WRITE, str(template), error.strerror or str(error)) from None
    except (KeyError, ValueError) as error:
        raise Refused(_WRITE, str(template), f"not a template: {error}") from None


def _values(cidrs: Sequence[_Network]) -> Mapping[str, str]:
    return {
        "POD_CIDR": str(cidrs[0]),
        "POD_CIDR_RANGES": json.dumps([[{"subnet": str(one)}] for one in cidrs]),
        "ROUTES": json.dumps([{"dst": _ANY[one.version]} for one in cidrs]),
    }

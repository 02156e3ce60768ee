"""Runs both daemons of a node, with all their files under one folder."""

from __future__ import annotations

import contextlib
import sys
import tomllib
from asyncio.subprocess import Process
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

from tools.localnode import network, toml
from tools.localnode.processes import Output, ProgramFailed, Readiness, background

ROOT = Path(__file__).resolve().parents[2]
_READY_SECONDS = 180.0
# unix(7) gives a socket's path 107 bytes; the longest of ours below the folder is run/protect/protect.sock.
_FOLDER_LIMIT = 70
_HEAD = """\
# Every key is explained in packaging/{name}.  A key left out here gets the value below, within this
# folder; run/{name} is the outcome, written at each start.

"""


@dataclass(frozen=True, slots=True)
class NodeLayout:
    """The paths of a node's files."""

    folder: Path

    @property
    def certs(self) -> Path:
        return self.folder / "certs.d"

    @property
    def networks(self) -> Path:
        return self.folder / "cni" / "net.d"

    @property
    def addresses(self) -> Path:
        return self.folder / "state" / "cni"

    @property
    def logs(self) -> Path:
        return self.folder / "log"

    @property
    def run(self) -> Path:
        return self.folder / "run"

    @property
    def bridge(self) -> network.Bridge:
        return network.bridge_for(str(self.folder))

    def protectd_defaults(self, toolstack: str) -> toml.Table:
        """Configuration of protectd, for keys missing in the user's file."""
        return {
            "toolstack": toolstack,
            "guest_dir": str(ROOT / "zone" / "build"),
            "run_dir": str(self.run / "protect"),
            "state_dir": str(self.folder / "state" / "protect"),
        }

    def cri_defaults(self, protect_socket: Path) -> toml.Table:
        """Configuration of xenpod-cri, for keys missing in the user's file."""
        return {
            "guest_dir": str(ROOT / "zone" / "build"),
            "run_dir": str(self.run / "xenpod"),
            "state_dir": str(self.folder / "state" / "xenpod"),
            "protect_socket": str(protect_socket),
            "images": {"certs_dir": str(self.certs)},
            "cni": {"conf_dir": str(self.networks), "netns_dir": str(self.run / "netns")},
            # Not the product's default: critest's specs ask for the host's processes (docs/conformance.md).
            "handlers": {"xenpod": {"host_namespaces": "zone"}},
        }


@dataclass(frozen=True, slots=True)
class Daemon:
    """A running daemon."""

    name: str
    process: Process
    output: Output


@dataclass(frozen=True, slots=True)
class LocalNode:
    """A running node."""

    layout: NodeLayout
    cri_socket: Path
    protect_socket: Path
    protectd: Daemon
    cri: Daemon

    @property
    def daemons(self) -> tuple[Daemon, Daemon]:
        return self.protectd, self.cri


def prepare(folder: Path, toolstack: str, *, masquerade: bool) -> NodeLayout:
    """Make the folder and the missing files of its configuration; existing files stay unchanged."""
    layout = NodeLayout(folder.resolve())
    if len(str(layout.folder)) > _FOLDER_LIMIT:
        raise ProgramFailed(
            f"{layout.folder} is longer than {_FOLDER_LIMIT} characters, too long for unix sockets"
        )
    for path in (layout.logs, layout.run, layout.certs, layout.networks, layout.run / "netns"):
        path.mkdir(parents=True, exist_ok=True)
    if not any(path.suffix in (".conf", ".conflist", ".json") for path in layout.networks.iterdir()):
        network.write_conflist(layout.networks, layout.bridge, layout.addresses, masquerade=masquerade)
    protect_socket = layout.run / "protect" / "protect.sock"
    _write_missing(layout.folder / "protectd.toml", layout.protectd_defaults(toolstack))
    _write_missing(layout.folder / "cri.toml", layout.cri_defaults(protect_socket))
    return layout


def _write_missing(path: Path, defaults: toml.Table) -> None:
    if not path.exists():
        path.write_text(_HEAD.format(name=path.name) + toml.dumps(defaults))


@contextlib.asynccontextmanager
async def serve_node(layout: NodeLayout, toolstack: str) -> AsyncIterator[LocalNode]:
    """Run both daemons while the block runs, then stop both in order; zones stay."""
    settings = _settings(layout, "protectd.toml", layout.protectd_defaults(toolstack))
    protect_socket = _socket(settings, "protect.sock")
    settings = _settings(layout, "cri.toml", layout.cri_defaults(protect_socket))
    cri_socket = _socket(settings, "cri.sock")
    async with (
        _daemon(layout, "protectd", "protect", "protectd.toml") as protectd,
        _daemon(layout, "xenpod-cri", "cri", "cri.toml") as cri,
    ):
        yield LocalNode(layout, cri_socket, protect_socket, protectd, cri)


@contextlib.asynccontextmanager
async def _daemon(layout: NodeLayout, name: str, module: str, config: str) -> AsyncIterator[Daemon]:
    """Run one daemon; the block begins when it is ready.  Its output goes to ``<log>/<name>.log``."""
    output = Output(layout.logs / f"{name}.log")
    command = (sys.executable, "-m", module, "--config", str(layout.run / config))
    with Readiness(layout.run / f"{name}.ready") as readiness:
        environment = readiness.environment
        async with background(*command, output=output, environment=environment, folder=ROOT) as process:
            await readiness.wait(process, output, _READY_SECONDS)
            yield Daemon(name, process, output)


def _socket(settings: toml.Table, name: str) -> Path:
    return Path(str(settings.get("socket") or Path(str(settings["run_dir"])) / name))


def _settings(layout: NodeLayout, name: str, defaults: toml.Table) -> toml.Table:
    """Write the user's file merged with ``defaults`` to ``run/``, for the daemon to read."""
    own = layout.folder / name
    try:
        table = tomllib.loads(own.read_text())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ProgramFailed(f"{own}: not TOML: {error}") from error
    settings = toml.merged(table, defaults)
    (layout.run / name).write_text(toml.dumps(settings))
    return settings

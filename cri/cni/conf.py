"""Network configurations on disk (CNI specification 0.3 to 1.1, section 1)."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from cri.state.attachment import Chain, Json, Plugin
from daemonkit.faults import Refused

VERSIONS = frozenset({"0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"})
_SUFFIXES = (".conf", ".conflist", ".json")
_MOST_BYTES = 1024 * 1024
_MOST_PLUGINS = 32
# Names and types become parts of paths, or of plugins' own file names.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
_TYPE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
_LOAD = "load network configuration"
_HINT = "put a CNI .conflist there; it is read again for every pod"


@dataclass(frozen=True, slots=True)
class _Stamp:
    """Identifies a version of a file."""

    path: Path
    inode: int
    size: int
    mtime_ns: int


class ConfDir:
    """The configuration in force: the lexically first file of a directory, read again after each change."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._read: tuple[_Stamp, Chain] | None = None

    def load(self) -> Chain:
        """The chain of plugins in force.  Refused, with the reason: the configuration is missing or wrong."""
        stamp = self._first()
        if self._read is None or self._read[0] != stamp:
            self._read = (stamp, _load(stamp.path))
        return self._read[1]

    def _first(self) -> _Stamp:
        try:
            paths = sorted(entry.path for entry in os.scandir(self._directory) if _wanted(entry))
        except OSError as error:
            raise Refused(_LOAD, str(self._directory), error.strerror or str(error), _HINT) from None
        if not paths:
            raise Refused(_LOAD, str(self._directory), "no network configuration there", _HINT)
        path = Path(paths[0])
        try:
            status = path.stat()
        except OSError as error:
            raise Refused(_LOAD, str(path), error.strerror or str(error)) from None
        return _Stamp(path, status.st_ino, status.st_size, status.st_mtime_ns)


def parse(text: str, source: str) -> Chain:
    """Parse a ``.conf`` or ``.conflist``; ValueError names the error."""
    try:
        value = json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if not isinstance(value, dict):
        raise ValueError("not a JSON object")
    version = value.get("cniVersion")
    if not isinstance(version, str) or version not in VERSIONS:
        raise ValueError(f"cniVersion {version!r:.50}: want one of {', '.join(sorted(VERSIONS))}")
    name = value.get("name")
    if not isinstance(name, str) or not _NAME.fullmatch(name) or len(name) > 255:
        raise ValueError(f"name {name!r:.100} is not a network name")
    plugins = value["plugins"] if "plugins" in value else [value]
    if not isinstance(plugins, list) or not 1 <= len(plugins) <= _MOST_PLUGINS:
        raise ValueError(f"plugins: not an array of 1 to {_MOST_PLUGINS}")
    return Chain(name, version, tuple(_plugin(plugin) for plugin in plugins), source)


def _plugin(value: object) -> Plugin:
    if not isinstance(value, dict):
        raise ValueError("a plugin is not a JSON object")
    kind = value.get("type")
    if not isinstance(kind, str) or not _TYPE.fullmatch(kind):
        raise ValueError(f"type {kind!r:.100} is not a plugin's name")
    capabilities = value.get("capabilities", {})
    if not isinstance(capabilities, Mapping):
        raise ValueError(f"{kind}: capabilities is not an object")
    # Spec section 1: "capabilities" is for the runtime; the plugin gets "runtimeConfig" instead.
    config: Json = {key: item for key, item in value.items() if key not in ("capabilities", "runtimeConfig")}
    return Plugin(kind, config, frozenset(name for name, on in capabilities.items() if on is True))


def _load(path: Path) -> Chain:
    try:
        with path.open("rb") as file:
            content = file.read(_MOST_BYTES + 1)
        if len(content) > _MOST_BYTES:
            raise ValueError(f"larger than {_MOST_BYTES} bytes")
        return parse(content.decode(), str(path))
    except OSError as error:
        raise Refused(_LOAD, str(path), error.strerror or str(error)) from None
    except ValueError as error:
        raise Refused(_LOAD, str(path), str(error)) from None


def _wanted(entry: os.DirEntry[str]) -> bool:
    return entry.name.endswith(_SUFFIXES) and not entry.is_dir()

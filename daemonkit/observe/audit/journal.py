"""The audit log in the system's journal, by its native protocol (systemd's JOURNAL_NATIVE_PROTOCOL)."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterable, Mapping
from pathlib import Path

from daemonkit.faults import Broken
from daemonkit.observe.audit.log_files import Head

SOCKET = Path("/run/systemd/journal/socket")
IDENTIFIER = "xenpod-audit"


class AuditJournal:
    """Sends entries to journald; all calls come from one thread."""

    def __init__(self, folder: Path, path: Path = SOCKET) -> None:
        """``folder``: keeps the number and hash of the last entry; a restart then continues the chain."""
        self._folder, self._path = folder, str(path)
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
            self._socket.settimeout(5.0)
        except OSError as error:
            raise Broken("open audit log", str(folder), error.strerror or str(error)) from error
        self.link = (Head.read(folder) or Head()).link

    def append(self, entries: Iterable[Mapping[str, object]]) -> None:
        """Send entries; OSError: the failed entry and all later ones are not in the journal."""
        for entry in entries:
            link, line = self.link.follow(entry)
            fields = {
                "MESSAGE": line[:-1],
                "PRIORITY": b"5",
                "SYSLOG_IDENTIFIER": IDENTIFIER.encode(),
                "XENPOD_DAEMON": str(entry.get("daemon", "")).encode(),
                "XENPOD_RPC": str(entry.get("rpc", "")).encode(),
                "XENPOD_POD": str(entry.get("pod", "")).encode(),
            }
            self._socket.sendto(b"".join(_field(*one) for one in fields.items()), self._path)
            self.link = link
        Head(self.link).write(self._folder)

    def close(self) -> None:
        self._socket.close()


def _field(name: str, value: bytes) -> bytes:
    return name.encode() + b"\n" + struct.pack("<Q", len(value)) + value + b"\n"

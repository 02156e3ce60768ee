"""xenstore: the small tree of text through which domains and backends find each other."""

from __future__ import annotations

import errno
import os
import socket
from pathlib import Path
from types import TracebackType

from xenbind.errors import StoreError
from xenbind.raw import ffi, lib, text

_NO_TRANSACTION = 0
_SOCKETS = (Path("/run/xenstored/socket"), Path("/var/run/xenstored/socket"))


def check_served() -> None:
    """Check that a live daemon serves the xenstore socket, if it exists; StoreError otherwise.

    libxenstore would fall back to the kernel's device and wait for a dead daemon for ever.
    """
    for path in _SOCKETS:
        with socket.socket(socket.AF_UNIX) as probe:
            code = probe.connect_ex(str(path))
            if code == errno.ECONNREFUSED:
                raise StoreError(code, f"connect to xenstore: {os.strerror(code)}", str(path))


class Xenstore:
    """A connection.  Safe for use by several threads; values are bytes, of a guest's nodes untrusted."""

    def __init__(self) -> None:
        check_served()
        # XS_OPEN_SOCKETONLY would do the same in one step; Xen 4.17 accepts the flag and ignores it.
        self._handle = lib.xs_open(0)
        if self._handle == ffi.NULL:
            raise _error("connect to", "xenstored")
        try:
            check_served()  # it may have died in between
        except StoreError:
            self.close()
            raise

    @property
    def fd(self) -> int:
        """Readable when ``next_watch`` has an event; valid only after the first watch."""
        return int(lib.xs_fileno(self._handle))

    def read(self, path: str) -> bytes | None:
        """The value, or None if the node is missing."""
        try:
            return self._read(_NO_TRANSACTION, path)
        except FileNotFoundError:
            return None

    def _read(self, transaction: int, path: str) -> bytes:
        length = ffi.new("unsigned int *")
        found = lib.xs_read(self._handle, transaction, path.encode(), length)
        if found == ffi.NULL:
            raise _error("read", path)
        try:
            return bytes(ffi.buffer(found, length[0]))
        finally:
            lib.free(found)

    def write(self, path: str, value: bytes) -> None:
        """Make or change a node, and make missing parents."""
        if not lib.xs_write(self._handle, _NO_TRANSACTION, path.encode(), value, len(value)):
            raise _error("write", path)

    def write_below(self, node: str, name: str, value: bytes) -> None:
        """Make or change a child of a node; FileNotFoundError if the node is missing.

        Unlike ``write``, never restores a node that another client is removing.
        """
        while not self._write_below(node, f"{node}/{name}", value):
            pass  # another client changed a node in between: xs_transaction_end(3), EAGAIN

    def _write_below(self, node: str, path: str, value: bytes) -> bool:
        transaction = lib.xs_transaction_start(self._handle)
        if transaction == _NO_TRANSACTION:
            raise _error("begin to write", path)
        try:
            self._read(transaction, node)
            if not lib.xs_write(self._handle, transaction, path.encode(), value, len(value)):
                raise _error("write", path)
        except OSError:
            lib.xs_transaction_end(self._handle, transaction, True)
            raise
        if lib.xs_transaction_end(self._handle, transaction, False):
            return True
        if ffi.errno == errno.EAGAIN:
            return False
        raise _error("write", path)

    def remove(self, path: str) -> None:
        """Remove a node and everything below, if it exists."""
        if not lib.xs_rm(self._handle, _NO_TRANSACTION, path.encode()):
            error = _error("remove", path)
            if not isinstance(error, FileNotFoundError):
                raise error

    def list(self, path: str) -> list[str]:
        """Names under a node; empty if it does not exist."""
        count = ffi.new("unsigned int *")
        found = lib.xs_directory(self._handle, _NO_TRANSACTION, path.encode(), count)
        if found == ffi.NULL:
            error = _error("list", path)
            if isinstance(error, FileNotFoundError):
                return []
            raise error
        try:
            return [text(found[number]) for number in range(count[0])]
        finally:
            lib.free(found)

    def watch(self, path: str, token: str) -> None:
        """Watch changes at or under ``path``; the watch fires once right away."""
        if not lib.xs_watch(self._handle, path.encode(), token.encode()):
            raise _error("watch", path)

    def unwatch(self, path: str, token: str) -> None:
        """Stop a watch; pending events are dropped."""
        if not lib.xs_unwatch(self._handle, path.encode(), token.encode()):
            error = _error("unwatch", path)
            if not isinstance(error, FileNotFoundError):
                raise error

    def next_watch(self) -> tuple[str, str] | None:
        """The next change as (path, token), or None; never waits."""
        found = lib.xs_check_watch(self._handle)
        if found == ffi.NULL:
            if ffi.errno == errno.EAGAIN:
                return None
            raise _error("read watch of", "xenstored")
        try:
            return text(found[0]), text(found[1])
        finally:
            lib.free(found)

    def close(self) -> None:
        """May be repeated; no call may be under way."""
        handle, self._handle = self._handle, ffi.NULL
        if handle != ffi.NULL:
            lib.xs_close(handle)

    def __enter__(self) -> Xenstore:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _error(operation: str, path: str) -> OSError:
    """An OSError for the C library's errno (FileNotFoundError for ENOENT, ...)."""
    code = ffi.errno
    kind: type[OSError] = FileNotFoundError if code == errno.ENOENT else StoreError
    return kind(code, f"{operation} xenstore: {os.strerror(code)}", path)

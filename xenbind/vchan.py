"""libxenvchan as a client: a byte stream over pages that the guest grants.

The content of the rings is the guest's; nothing here ever blocks on the guest.  The vchan does not report
the guest's end: :mod:`xenbind.domain_ends` does.  Until ``close`` the guest's pages stay, and the domain
stays as a zombie.
"""

from __future__ import annotations

import errno
import os

from xenbind.errors import RingsTooLarge, VchanError
from xenbind.raw import ffi, lib


class VchanClient:
    """A connection to a server in ``domid`` at ``path`` in xenstore."""

    def __init__(self, domid: int, path: str, most_order: int) -> None:
        """``most_order``: each ring has at most two to this power bytes.  RingsTooLarge; VchanError."""
        self._channel = lib.libxenvchan_client_init(ffi.NULL, domid, path.encode())
        if self._channel == ffi.NULL:
            code = ffi.errno
            raise VchanError(code, f"connect vchan of domain {domid}: {os.strerror(code)}", path)
        # The library has mapped both rings already.  Checking the guest's page before the mapping would bound
        # nothing, because the guest can change the page after the check.
        largest = max(int(self._channel.read.order), int(self._channel.write.order))
        if largest > most_order:
            self.close()
            cause = f"a ring of {1 << largest} bytes, at most {1 << most_order} are allowed"
            raise RingsTooLarge(errno.EMSGSIZE, cause, path)
        lib.binding_never_block(self._channel)

    @property
    def fd(self) -> int:
        """Readable after an action of the other side; call ``consume``, and try again."""
        return int(lib.libxenvchan_fd_for_select(self._channel))

    def consume(self) -> None:
        """Take the event that made ``fd`` readable.  Call only then, or the call waits."""
        if lib.libxenvchan_wait(self._channel) < 0:
            raise VchanError(ffi.errno, "wait for vchan")

    def read_into(self, buffer: bytearray | memoryview) -> int | None:
        """Bytes read; 0 if no data is ready, None if the other side closed and all is read."""
        count = lib.libxenvchan_read(self._channel, ffi.from_buffer(buffer), len(buffer))
        return None if count < 0 else int(count)

    def write(self, data: bytes | memoryview) -> int | None:
        """Bytes written; 0 without space, None if the other side closed."""
        count = lib.libxenvchan_write(self._channel, ffi.from_buffer(data), len(data))
        return None if count < 0 else int(count)

    def close(self) -> None:
        """Unmap the guest's pages; may be repeated."""
        channel, self._channel = self._channel, ffi.NULL
        if channel != ffi.NULL:
            lib.libxenvchan_close(channel)

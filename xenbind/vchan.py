"""libxenvchan as a client: a byte stream over pages that the guest grants.

What is in the rings is the guest's; nothing here ever blocks on it.  The end of the guest is not told:
that comes from :mod:`xenbind.events`, and until ``close`` the guest's pages, and so the domain as a
zombie, stay.
"""

from __future__ import annotations

import errno
import os

from xenbind.errors import RingsTooLarge, VchanError
from xenbind.raw import ffi, lib


class VchanClient:
    """A connection to a server in ``domid`` that published itself under ``path`` in xenstore."""

    def __init__(self, domid: int, path: str, most_order: int) -> None:
        """``most_order``: each ring has at most two to this power bytes.  RingsTooLarge; VchanError."""
        self._channel = lib.libxenvchan_client_init(ffi.NULL, domid, path.encode())
        if self._channel == ffi.NULL:
            code = ffi.errno
            raise VchanError(code, f"connect vchan of domain {domid}: {os.strerror(code)}", path)
        # The library has mapped both rings already.  A look at the guest's page before that would bound
        # nothing: the guest can change the page after the look.
        largest = max(int(self._channel.read.order), int(self._channel.write.order))
        if largest > most_order:
            self.close()
            cause = f"a ring of {1 << largest} bytes, at most {1 << most_order} are allowed"
            raise RingsTooLarge(errno.EMSGSIZE, cause, path)
        lib.binding_never_block(self._channel)

    @property
    def fd(self) -> int:
        """Readable when the other side did something; call ``consume`` then, and try again."""
        return int(lib.libxenvchan_fd_for_select(self._channel))

    def consume(self) -> None:
        """Take the event that made ``fd`` readable.  Waits when there was none: call it only then."""
        if lib.libxenvchan_wait(self._channel) < 0:
            raise VchanError(ffi.errno, "wait for vchan")

    def read_into(self, buffer: bytearray | memoryview) -> int | None:
        """Bytes read; 0 when there is nothing now, None when the other side closed and all is read."""
        count = lib.libxenvchan_read(self._channel, ffi.from_buffer(buffer), len(buffer))
        return None if count < 0 else int(count)

    def write(self, data: bytes | memoryview) -> int | None:
        """Bytes written; 0 when there is no space now, None when the other side closed."""
        count = lib.libxenvchan_write(self._channel, ffi.from_buffer(data), len(data))
        return None if count < 0 else int(count)

    def close(self) -> None:
        """Unmap the guest's pages; may be repeated."""
        channel, self._channel = self._channel, ffi.NULL
        if channel != ffi.NULL:
            lib.libxenvchan_close(channel)

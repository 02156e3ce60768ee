"""A FUSE file server that answers INIT and nothing else (linux/fuse.h): all callers wait."""

from __future__ import annotations

import ctypes
import os
import struct
import threading
from pathlib import Path

from protect.host import mounts

_REQUEST = struct.Struct("=IIQQIII4x")
"""fuse_in_header: length, opcode, unique, nodeid, uid, gid, pid."""
_ANSWER = struct.Struct("=IiQ")
"""fuse_out_header: length, error, unique."""
_INIT_ANSWER = struct.Struct("=IIIIHHIIHHI28x")
"""fuse_init_out: major, minor, max_readahead, flags, ..., max_write, time_gran, ..."""
_INIT = 26
_MNT_FORCE = 1
_libc = ctypes.CDLL(None, use_errno=True)


class SilentServer:
    """A server mounted at ``path``. The server reads requests: not even SIGKILL ends the callers."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.asked = 0
        self._device = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
        self._reader = threading.Thread(target=self._read, daemon=True)

    def __enter__(self) -> SilentServer:
        self.path.mkdir(parents=True)
        options = f"fd={self._device},rootmode=40755,user_id=0,group_id=0,allow_other"
        if _libc.mount(b"silent", os.fsencode(self.path), b"fuse", ctypes.c_ulong(0), options.encode()) < 0:
            raise OSError(ctypes.get_errno(), "mount", str(self.path))
        request = os.read(self._device, 1 << 17)
        _, opcode, unique, *_ = _REQUEST.unpack_from(request)
        assert opcode == _INIT
        body = _INIT_ANSWER.pack(7, 31, 0, 0, 16, 12, 1 << 16, 1, 1, 0, 0)
        os.write(self._device, _ANSWER.pack(_ANSWER.size + len(body), 0, unique) + body)
        self._reader.start()
        return self

    def _read(self) -> None:
        while True:
            try:
                os.read(self._device, 1 << 17)
            except OSError:  # the mount is gone
                return
            self.asked += 1

    def abort(self) -> None:
        """Fail all waiting and later callers."""
        _libc.umount2(os.fsencode(self.path), _MNT_FORCE)

    def __exit__(self, *exception: object) -> None:
        self.abort()
        self._reader.join()
        os.close(self._device)
        while mounts.unmount(self.path):
            pass

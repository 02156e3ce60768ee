"""Makes user namespaces for id-mapped mounts (mount_setattr(2))."""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from daemonkit.host.children import settle
from protect.model.zone import ZoneIdMapping

_SERVER = 2**32 - 2
"""Id of the host's root in the namespace, unused otherwise.  A file server that runs as root can then create
files and give them to their owners.
"""


def lines(mapping: ZoneIdMapping) -> str:
    """Render a mapping for uid_map and gid_map (user_namespaces(7))."""
    own = f"0 {mapping.host_id} {mapping.length}\n"
    serves = mapping.host_id > 0 and mapping.length <= _SERVER
    return own + (f"{_SERVER} 0 1\n" if serves else "")


@contextmanager
def user_namespace(mapping: ZoneIdMapping) -> Iterator[int]:
    """A descriptor of a user namespace with these mappings, for the block.  Blocks shortly; OSError."""
    command = ["unshare", "--user", "cat"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0) as holder:
        assert holder.stdin is not None and holder.stdout is not None
        try:
            settle(holder.pid)
            # cat answers from inside its new namespace.
            holder.stdin.write(b"?")
            if holder.stdout.read(1) != b"?":
                raise OSError(errno.ENOSPC, "unshare: see user.max_user_namespaces", "user namespace")
            home = Path(f"/proc/{holder.pid}")
            for kind in ("uid_map", "gid_map"):
                (home / kind).write_text(lines(mapping))
            descriptor = os.open(home / "ns/user", os.O_RDONLY | os.O_CLOEXEC)
        finally:
            holder.stdin.close()
    try:
        yield descriptor
    finally:
        os.close(descriptor)

"""The primary console of a domain."""

from __future__ import annotations

from xenbind.context import Context
from xenbind.raw import ffi, lib


def tty(context: Context, domid: int) -> str:
    """Path of the pseudo terminal at which xenconsoled offers it (``/dev/pts/<n>``)."""
    path = ffi.new("char **")
    context.call(
        lib.libxl_primary_console_get_tty,
        domid,
        path,
        name="libxl_primary_console_get_tty",
        subject=f"domain {domid}",
    )
    try:
        return ffi.string(path[0]).decode()  # type: ignore[no-any-return]
    finally:
        lib.free(path[0])

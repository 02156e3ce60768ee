"""FLASK, the security module of the hypervisor: presence, and labels of its policy.

libxl 4.17 returns -1 and sets errno, like libxenctrl below (xc_flask.c).  Xen without XSM, or booted with
flask=disabled or xsm=silo, does not know the call: ENOSYS.
"""

from __future__ import annotations

import errno
import os

from xenbind.context import Context
from xenbind.raw import ffi, lib


def enforcing(context: Context) -> bool | None:
    """Whether FLASK enforces its policy; None without FLASK.  OSError if the hypervisor refuses to answer."""
    found = lib.libxl_flask_getenforce(context.ctx)
    number = ffi.errno
    context.take_log()
    if found >= 0:
        return bool(found)
    if number == errno.ENOSYS:
        return None
    raise OSError(number, os.strerror(number), "libxl_flask_getenforce")


def knows(context: Context, label: str) -> bool:
    """Whether the loaded policy has the security context.  OSError as above."""
    text = label.encode()
    found = lib.libxl_flask_context_to_sid(context.ctx, text, len(text), ffi.new("uint32_t *"))
    number = ffi.errno
    context.take_log()
    if found >= 0:
        return True
    if number in (errno.EINVAL, errno.ENOENT, errno.ENOSYS):
        return False
    raise OSError(number, os.strerror(number), f"libxl_flask_context_to_sid {label}")

"""xenbind on a host without Xen: clear errors at use, and never at import."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from protect.model.errors import ToolstackError
from protect.toolstack.libxl.settings import LibxlSettings
from protect.toolstack.libxl.toolstack import LibxlToolstack
from tests.support.protect.binding import needs_binding
from tests.xen.machine import is_dom0
from xenbind import errors, raw, xenstore
from xenbind.context import Context
from xenbind.domain import Shutdown
from xenbind.xenstore import Xenstore

no_xen = pytest.mark.skipif(is_dom0(), reason="this machine runs Xen")

_WITHOUT = """
import sys
sys.modules["xenbind._libxl"] = None
import xenbind.disk, xenbind.domain, xenbind.domain_ends, xenbind.nic, xenbind.physinfo
import xenbind.vchan, xenbind.xenstore, protect.toolstack.libxl.toolstack, protect.__main__
from xenbind.context import Context
from xenbind.raw import Unavailable
for use in (Context, xenbind.xenstore.Xenstore, lambda: xenbind.vchan.VchanClient(1, "/x", 16)):
    try:
        use()
    except Unavailable as error:
        print(error)
"""


def test_without_the_compiled_module() -> None:
    done = subprocess.run([sys.executable, "-c", _WITHOUT], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 3
    assert "libxen-dev" in done.stdout and "make xenbind" in done.stdout


@needs_binding
@no_xen
def test_calls_without_a_hypervisor_fail_with_a_hint() -> None:
    with pytest.raises(errors.XenError) as caught:
        Context()
    assert (caught.value.call, caught.value.code, caught.value.name) == ("libxl_ctx_alloc", -3, "FAIL")
    assert "privileged command interface" in caught.value.detail
    assert "as dom0" in str(caught.value)
    with pytest.raises(OSError, match="connect to xenstore"):
        Xenstore()


@no_xen
async def test_the_toolstack_names_the_missing_part(tmp_path: Path) -> None:
    image, initramfs = tmp_path / "vmlinux", tmp_path / "initramfs"
    image.write_bytes(b"\x7fELF")
    initramfs.touch()
    toolstack = LibxlToolstack(tmp_path, tmp_path, LibxlSettings(kernel=image, initramfs=initramfs))
    with pytest.raises(ToolstackError, match=r"libxen-dev|run Xen, with this system as dom0"):
        await toolstack.start()
    await toolstack.close()


@needs_binding
def test_error_class_and_text_follow_the_code() -> None:
    assert isinstance(errors.of("f", -21), errors.DomainNotFound)
    assert isinstance(errors.of("f", -17), errors.DeviceExists)
    assert str(errors.of("libxl_f", -3, "x", "one\ntwo\n")) == "libxl_f x: ERROR_FAIL (-3): one; two"
    assert str(errors.of("libxl_f", -999)) == "libxl_f: ERROR_UNKNOWN (-999)"


@needs_binding
def test_the_compiler_fills_in_the_codes() -> None:
    assert (raw.lib.ERROR_FAIL, raw.lib.ERROR_DOMAIN_NOTFOUND, raw.lib.ERROR_NOTFOUND) == (-3, -21, -23)
    reasons = [Shutdown.of(code) for code in (-1, 0, 1, 2, 3, 4, 5, 77)]
    assert reasons == [*Shutdown, Shutdown.UNKNOWN]
    known = raw.names("libxl_error", "ERROR_").values()
    assert errors.BY_NAME.keys() <= set(known)


@needs_binding
def test_every_function_called_by_name_exists() -> None:
    sources = [file.read_text() for file in Path(errors.__file__).parent.glob("*.py")]
    functions = {name for text in sources for name in re.findall(r'"(libxl_\w+)"', text)}
    kinds = {name for text in sources for name in re.findall(r'struct\("(libxl_\w+)"\)', text)}
    enums = {name for text in sources for name in re.findall(r'names\("(libxl_\w+)"', text)}
    assert {"libxl_domain_create_new", "libxl_device_disk_add"} <= functions and len(kinds) > 4
    wanted = functions - kinds - enums - {"libxl_ctx_alloc", "libxl_event_check"}  # binding.c calls both
    wanted |= {f"{kind}_{end}" for kind in kinds for end in ("init", "dispose")}
    assert [name for name in sorted(wanted) if not hasattr(raw.lib, name)] == []


def test_an_unserved_socket_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else libxenstore would wait for ever for a dead daemon."""
    path = tmp_path / "socket"
    monkeypatch.setattr(xenstore, "_SOCKETS", (path,))
    xenstore.check_served()
    with socket.socket(socket.AF_UNIX) as serving:
        serving.bind(str(path))
        serving.listen()
        xenstore.check_served()
    with pytest.raises(errors.StoreError, match="Connection refused"):
        xenstore.check_served()

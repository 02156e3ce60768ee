"""Compiles the raw module ``xenbind._libxl`` against the installed Xen headers: ``python -m xenbind.build``.

Struct layouts differ between Xen releases: the module belongs to the libraries of this machine.  It is put
beside this file, in an installed package as in a checkout.  Without headers nothing is built, without an
error: xenbind reports the absence at first use.  With ``--required`` missing headers are an error, and a
module for the running Xen is kept until the host boots the Xen of the headers.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from cffi import FFI, VerificationError

HERE = Path(__file__).parent
SOURCES = (HERE / "binding.cdef.h", HERE / "binding.c", Path(__file__))
HEADERS = tuple(
    Path("/usr/include") / name for name in ("libxl.h", "libxenvchan.h", "xenstore.h", "xenctrl.h")
)
LIBRARIES = ["xenlight", "xenvchan", "xenstore", "xentoollog", "xenctrl"]
_HYPERVISOR = Path("/sys/hypervisor")


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    missing = [str(header) for header in HEADERS if not header.exists()]
    if missing:
        _say(f"xenbind is not built: {missing[0]} is missing (Debian package libxen-dev)")
        return 1 if options.required else 0
    running, offered = running_xen(_HYPERVISOR), offered_xen(Path("/usr"))
    if options.required and running and running == module_xen(HERE) != offered:
        _say(f"xenbind is kept for Xen {running}, which runs; after a boot with Xen {offered} build it again")
        return 0
    if not options.force and not _stale():
        return 0
    try:
        _build()
    except VerificationError as error:
        _say(f"xenbind is not built: {error} (Debian packages gcc, libc6-dev, python3-dev)")
        return 1
    except OSError as error:
        _say(f"xenbind is not built: {error} (the module goes where the package is: run this as its owner)")
        return 1
    if running and offered and running != offered:
        _say(f"xenbind is built for Xen {offered}, and Xen {running} runs: it cannot be used before a boot")
    return 0


def running_xen(hypervisor: Path) -> str:
    """Return the release of the running Xen, for example "4.17"; "": no Xen."""
    try:
        if (hypervisor / "type").read_text().strip() != "xen":
            return ""
        version = hypervisor / "version"
        return ".".join((version / part).read_text().strip() for part in ("major", "minor"))
    except OSError:
        return ""


def offered_xen(usr: Path) -> str:
    """Return the Xen release of the headers; "": unknown.

    The headers' package has a link to its library, libxenlight.so.4.17.
    """
    for link in (*usr.glob("lib/*/libxenlight.so"), *usr.glob("lib*/libxenlight.so")):
        if found := re.search(r"\.so\.(\d+\.\d+)", link.resolve().name):
            return found[1]
    return ""


def module_xen(folder: Path) -> str:
    """Return the Xen release that the built module needs; "": no module."""
    for module in folder.glob("_libxl*.so"):
        if found := re.search(rb"\0libxenlight\.so\.(\d+\.\d+)\0", module.read_bytes()):
            return found[1].decode()
    return ""


def _build() -> None:
    ffi = FFI()
    ffi.cdef(SOURCES[0].read_text())
    ffi.set_source(
        "_libxl",
        f'#include "{SOURCES[1]}"\n',
        libraries=LIBRARIES,
        extra_compile_args=["-std=gnu11", "-Wall", "-Wextra", "-Wno-unused-parameter"],
    )
    with tempfile.TemporaryDirectory(dir=HERE, prefix=".build-") as scratch:
        built = Path(ffi.compile(tmpdir=scratch))
        os.replace(built, HERE / built.name)  # atomic: other processes may be importing it


def _stale() -> bool:
    """Whether a source, or an installed header, came after the module was built."""
    built = list(HERE.glob("_libxl*.so"))
    if not built:
        return True
    newest = max(
        [source.stat().st_mtime for source in SOURCES] + [header.stat().st_ctime for header in HEADERS]
    )
    return newest > built[0].stat().st_mtime


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="xenbind.build", description="Compiles the libxl binding.")
    parser.add_argument("--force", action="store_true", help="also if nothing has changed since it was built")
    parser.add_argument(
        "--required", action="store_true", help="fail without headers; keep the module of the Xen that runs"
    )
    return parser


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")


if __name__ == "__main__":
    sys.exit(main())

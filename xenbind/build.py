"""Compiles the raw module ``xenbind._libxl`` against the installed Xen headers: ``python -m xenbind.build``.

Struct layouts differ between Xen releases, so the module belongs to the libraries of this machine.
Without the headers nothing is built, and that is no error: xenbind says so when it is used.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from cffi import FFI

HERE = Path(__file__).parent
SOURCES = (HERE / "binding.cdef.h", HERE / "binding.c", Path(__file__))
HEADERS = tuple(Path("/usr/include") / name for name in ("libxl.h", "libxenvchan.h", "xenstore.h"))
LIBRARIES = ["xenlight", "xenvchan", "xenstore", "xentoollog"]


def main() -> int:
    missing = [str(header) for header in HEADERS if not header.exists()]
    if missing:
        sys.stderr.write(f"xenbind is not built: {missing[0]} is missing (Debian package libxen-dev)\n")
        return 0
    if not _stale():
        return 0
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
        os.replace(built, HERE / built.name)  # in one step: others may be importing it
    return 0


def _stale() -> bool:
    """Whether a source, or an installed header, came after the module was built."""
    built = list(HERE.glob("_libxl*.so"))
    if not built:
        return True
    newest = max(
        [source.stat().st_mtime for source in SOURCES] + [header.stat().st_ctime for header in HEADERS]
    )
    return newest > built[0].stat().st_mtime


if __name__ == "__main__":
    sys.exit(main())

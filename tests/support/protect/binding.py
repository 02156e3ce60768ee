"""A mark for tests that need the compiled binding of libxl."""

from __future__ import annotations

from importlib import import_module

import pytest


def _is_built() -> bool:
    try:
        import_module("xenbind._libxl")
    except ImportError:
        return False
    return True


needs_binding = pytest.mark.skipif(not _is_built(), reason="xenbind is not built (make xenbind)")

"""tests/xen/inside runs in dom0; everything else here runs outside, and boots one."""

from __future__ import annotations

from tests.xen.machine import is_dom0

collect_ignore = ["test_nested.py"] if is_dom0() else ["inside"]

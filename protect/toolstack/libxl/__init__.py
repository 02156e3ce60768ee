"""The Xen toolstack: domains by libxl, disks by blkback, interfaces by netback, the channel by vchan."""

from protect.toolstack.libxl.settings import LibxlSettings
from protect.toolstack.libxl.toolstack import LibxlToolstack

__all__ = ["LibxlSettings", "LibxlToolstack"]

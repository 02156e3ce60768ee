"""The Xen toolstack: domains by libxl, disks by blkback, interfaces by netback, the channel by vchan."""

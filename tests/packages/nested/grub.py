"""GRUB's default choice, from the menu of update-grub.

Source: the GNU GRUB manual, "Multiboot"; /etc/grub.d/20_linux_xen of Debian.
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Entry:
    """Paths as on the disk, and the command lines of Xen and of dom0's kernel."""

    title: str
    xen: str
    xen_words: str
    kernel: str
    kernel_words: str
    initramfs: str


def default_entry(menu: str) -> Entry:
    """The default entry. AssertionError: the entry boots no Xen."""
    [default] = re.findall(r'^\s*set default="([^$"]+)"$', menu, re.MULTILINE)
    found = re.search(rf"^menuentry '{re.escape(default)}' .*?{{$(.*?)^}}$", menu, re.MULTILINE | re.DOTALL)
    assert found, f"no entry of the menu is {default!r}, the default\n{menu}"
    lines = [line.split() for line in found.group(1).splitlines() if line.strip()]
    programs = [words[1:] for words in lines if words[0] in ("multiboot", "multiboot2")]
    modules = [words[1:] for words in lines if words[0] in ("module", "module2")]
    assert len(programs) == 1 and len(modules) == 2, f"{default!r} does not boot Xen:{found.group(1)}"
    [xen, *xen_words], [kernel, *kernel_words], initramfs = programs[0], modules[0], modules[1][-1]
    return Entry(default, xen, _words(xen_words), kernel, _words(kernel_words), initramfs)


def _words(words: list[str]) -> str:
    """Without GRUB's own: the name in the place of a program's, and a variable that is empty on a PC."""
    return " ".join(word for word in words if word not in ("placeholder", "${xen_rm_opts}"))

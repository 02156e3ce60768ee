"""A Debian on Xen, from its packages to its shutdown, like an operator's machine: systemd is dom0's init.

QEMU boots the machine in software emulation.  GRUB's choice comes from the menu of update-grub.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.packages import trees
from tests.packages.nested.debian import NestedDebian
from tests.packages.nested.grub import default_entry
from tests.packages.story import LATER, UNITS, NodeWithPod, put_packages, put_workload
from tests.xen.parts import NotInstalled, find_parts

pytestmark = [pytest.mark.root, pytest.mark.slow, pytest.mark.timeout(7200)]

NAMES = ("xenpod", "xenpod-guest", "xenpod-libxl")
NEW = "/new"
"""In the machine: the folder of the first packages."""
LACKS = {"clock": "no time server can be reached from QEMU"}
"""Findings of doctor on a new node, with their reasons in this machine."""


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[NestedDebian]:
    """A Debian with Xen and without xenpod, not booted."""
    try:
        find_parts()
    except NotInstalled as error:
        pytest.skip(str(error))
    folder = tmp_path / "nested"
    folder.mkdir()
    made = NestedDebian(folder)
    trees.xen_host(made.root)
    made.prepare()
    try:
        yield made
    finally:
        made.close()


def test_a_debian_becomes_a_node_and_its_pod_outlives_its_packages(
    machine: NestedDebian, packages: Path, later: Path
) -> None:
    put_workload(machine)
    put_packages(machine, packages, NEW)
    put_packages(machine, later, LATER)
    machine.boot()
    assert machine.run("cat", "/sys/hypervisor/type") == "xen\n"
    files = " ".join(f"{NEW}/{name}_*.deb" for name in NAMES)
    machine.run("sh", "-c", f"apt-get install -qy --no-install-recommends {files}")
    becomes_a_node(machine)

    node = NodeWithPod.begin(machine, NAMES)
    assert "xen" in machine.run("crictl", "exec", node.box, "cat", "/sys/hypervisor/type")
    node.survives_restarts()
    node.survives_a_hang()
    node.survives_an_upgrade()
    node.ends_with_its_host("xen")


def becomes_a_node(machine: NestedDebian) -> None:
    """Set the machine up, boot GRUB's choice, and find a healthy host with the units started by systemd."""
    shown = machine.run("xenpod-setup", "--dry-run")
    assert "GRUB_CMDLINE_XEN_DEFAULT" in shown
    machine.run("test", "-e", "/etc/default/grub.d/xenpod.cfg", fails=True)
    machine.run("xenpod-setup")
    # In emulation a zone's kernel is slow.
    machine.run("sed", "-i", 's/^boot = .*/boot = "600s"/', "/etc/protect/protectd.toml")
    machine.run("crictl", "config", "--set", "timeout=600")
    entry = default_entry(machine.run("cat", "/boot/grub/grub.cfg"))
    machine.shut_down()
    machine.boots(entry)
    machine.boot()
    assert "dom0_mem=" in machine.run("xl", "info", "xen_commandline")
    for unit in UNITS:
        machine.until(f"systemctl is-active {unit}", unit)
    assert "nothing to do" in machine.run("xenpod-setup")
    found = json.loads(machine.run("protect", "doctor", "--output", "json"))["checks"]
    amiss = {one["check"]: one for one in found if one["state"] != "ok"}
    assert set(amiss) == set(LACKS), json.dumps(list(amiss.values()), indent=1)

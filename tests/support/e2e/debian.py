"""A tree of Debian packages as an image layer, without running their scripts."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path

_UNUSED = ("perl", "libperl", "usrmerge", "init-system-helpers", "debconf", "dpkg_")
"""Packages that only the scripts of other packages need, by the start of their names."""
_OMITTED = ("./usr/share/doc", "./usr/share/man", "./usr/share/locale", "./usr/share/info", "./var/cache")


def debian_layer(folder: Path, packages: Sequence[str]) -> bytes:
    """Download packages with their dependencies: an uncompressed tar, always the same for the same packages.

    ``folder`` keeps the packages and the tar for the next run.  CalledProcessError: apt-get or tar failed.
    """
    folder = folder / sha256(" ".join(packages).encode()).hexdigest()[:12]
    done = folder / "layer.tar"
    if not done.exists():
        archives, tree = folder / "archives", folder / "tree"
        for path in (archives / "partial", tree):
            path.mkdir(parents=True, exist_ok=True)
        _download(archives, packages)
        for archive in sorted(archives.glob("*.deb")):
            if not archive.name.startswith(_UNUSED):
                subprocess.run(["dpkg-deb", "--extract", archive, tree], check=True)
        begun = folder / "layer.part"
        omitted = [f"--exclude={path}" for path in _OMITTED]
        owners = ["--owner=0", "--group=0", "--numeric-owner", "--mtime=@0", "--sort=name"]
        subprocess.run(["tar", *omitted, *owners, "-C", tree, "-cf", begun, "."], check=True)
        begun.rename(done)
    return done.read_bytes()


def _download(archives: Path, packages: Sequence[str]) -> None:
    """Run apt-get as on a machine without packages, to download every dependency; nothing is installed."""
    status = archives / "status"
    status.touch()
    settings = [
        f"Dir::State::status={status}",
        f"Dir::Cache::archives={archives}",
        "APT::Sandbox::User=root",
        "APT::Install-Recommends=0",
        "Debug::NoLocking=1",
    ]
    command = ["apt-get", "-qq", "-y", *(word for one in settings for word in ("-o", one))]
    subprocess.run([*command, "--download-only", "install", *packages], check=True)

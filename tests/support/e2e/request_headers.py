"""The certificates with which an API server passes requests on to another API server, and their flags."""

from __future__ import annotations

import subprocess
from pathlib import Path

_NAME = "front-proxy"


def request_header_flags(folder: Path) -> list[str]:
    """Make an authority and a client's certificate in ``folder``: the flags of kube-apiserver."""
    folder.mkdir(parents=True)
    for name, signed in (
        (f"{_NAME}-ca", []),
        (_NAME, ["-CA", f"{_NAME}-ca.crt", "-CAkey", f"{_NAME}-ca.key"]),
    ):
        asked = ["-x509", "-newkey", "rsa:2048", "-nodes", "-days", "365", "-subj", f"/CN={name}", *signed]
        files = ["-keyout", f"{name}.key", "-out", f"{name}.crt"]
        subprocess.run(["openssl", "req", *asked, *files], check=True, capture_output=True, cwd=folder)
    return [
        f"--requestheader-client-ca-file={folder}/{_NAME}-ca.crt",
        f"--requestheader-allowed-names={_NAME}",
        "--requestheader-username-headers=X-Remote-User",
        "--requestheader-group-headers=X-Remote-Group",
        "--requestheader-extra-headers-prefix=X-Remote-Extra-",
        f"--proxy-client-cert-file={folder}/{_NAME}.crt",
        f"--proxy-client-key-file={folder}/{_NAME}.key",
    ]

"""A token service for Debian's docker-registry: RS256 JSON web tokens, signed with openssl.

Source: distribution's spec/auth (jwt.md, token.md).
"""

from __future__ import annotations

import base64
import hashlib
import json
import subprocess
import time
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.support.images.http_server import HttpServer

SERVICE, ISSUER = "test-registry", "test-issuer"


class TokenService:
    """Gives pull tokens to one user (and, when open, to anybody). asked: (Authorization, scope) until now."""

    def __init__(self, directory: Path, user: str, password: str, anonymous: bool = False) -> None:
        self._key, self.certificate = directory / "token.key", directory / "token.pem"
        make = "req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=token"
        _openssl(*make.split(), "-keyout", str(self._key), "-out", str(self.certificate))
        self._right = "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()
        self.asked: list[tuple[str, str]] = []
        service = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                query = parse_qs(urlsplit(self.path).query)
                shown, scope = self.headers.get("Authorization", ""), query.get("scope", [""])[0]
                service.asked.append((shown, scope))
                allowed = shown == service._right or (anonymous and not shown)
                body = json.dumps({"token": service._token(scope)} if allowed else {}).encode()
                self.send_response(200 if allowed else 401)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *args: Any) -> None:
                pass

        self._server = HttpServer(Handler)
        self.realm = f"http://{self._server.netloc}/token"

    def __enter__(self) -> TokenService:
        self._server.__enter__()
        return self

    def __exit__(self, *exc: object) -> None:
        self._server.__exit__(*exc)

    @property
    def auth(self) -> dict[str, Any]:
        """The registry's configuration."""
        return {
            "token": {
                "realm": self.realm,
                "service": SERVICE,
                "issuer": ISSUER,
                "rootcertbundle": str(self.certificate),
            }
        }

    def _token(self, scope: str) -> str:
        kind, name, actions = (scope.split(":") + ["", ""])[:3]
        now = int(time.time())
        claims = {
            "iss": ISSUER, "sub": "", "aud": SERVICE, "exp": now + 300, "nbf": now - 5, "iat": now,
            "jti": str(now),
            "access": [{"type": kind, "name": name, "actions": actions.split(",")}],
        }  # fmt: skip
        header = {"typ": "JWT", "alg": "RS256", "kid": self._key_id(), "x5c": [self._der()]}
        signed = ".".join(_b64(json.dumps(part).encode()) for part in (header, claims))
        return f"{signed}.{_b64(_openssl('dgst', '-sha256', '-sign', str(self._key), stdin=signed.encode()))}"

    def _der(self) -> str:
        return base64.b64encode(_openssl("x509", "-in", str(self.certificate), "-outform", "DER")).decode()

    def _key_id(self) -> str:
        """libtrust's: the first 240 bits of the public key's SHA-256 in base 32, in groups of four."""
        public = _openssl("rsa", "-in", str(self._key), "-pubout", "-outform", "DER")
        text = base64.b32encode(hashlib.sha256(public).digest()[:30]).decode()
        return ":".join(text[at : at + 4] for at in range(0, len(text), 4))


def _openssl(*arguments: str, stdin: bytes = b"") -> bytes:
    done = subprocess.run(["openssl", *arguments], input=stdin, capture_output=True, check=True)
    return done.stdout


def _b64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()

"""Imports all modules for a conversation: a confined process finds no module, and loads no library."""

from __future__ import annotations

import encodings.idna
import encodings.latin_1
import hashlib
import http.client
import socket
import ssl
import stringprep
import unicodedata

import images.registry.conversation.serve

_LOADED = (encodings, http, stringprep, unicodedata, images.registry.conversation.serve)


def preload_modules() -> None:
    """Load the configuration of libraries, and modules that Python imports at first use."""
    hashlib.new("sha256")
    ssl.create_default_context()
    "registry.example".encode("idna")
    socket.getaddrinfo("127.0.0.1", 443, type=socket.SOCK_STREAM)

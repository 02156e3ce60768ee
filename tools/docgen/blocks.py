"""The fenced code blocks of Markdown."""

from __future__ import annotations

import re

_BLOCK = re.compile(r"^```(?P<language>\w*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(markdown: str, language: str) -> list[str]:
    """The texts of the blocks in this language ("": without a language), in order."""
    return [match["text"] for match in _BLOCK.finditer(markdown) if match["language"] == language]

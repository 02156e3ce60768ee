"""Terminal sizes as clients send them: JSON objects one after the other."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass

from cri.streaming.transport.inbox import Inbox
from cri.streaming.transport.wire import ClientGone

_KEPT = 4096
"""Characters of an object that is not whole yet."""
_MOST = 0xFFFF
_BLANKS = " \t\r\n"


@dataclass(frozen=True, slots=True)
class Size:
    """In characters."""

    rows: int
    columns: int


async def sizes(inbox: Inbox) -> AsyncIterator[Size]:
    """Each size; ClientGone for what is none.  A size of nothing (0 by 0) is passed over, as clients send it
    when their own output is no terminal."""
    kept = ""
    while data := await inbox.read():
        kept = (kept + data.decode("latin-1")).lstrip(_BLANKS)
        while kept:
            try:
                value, end = json.JSONDecoder().raw_decode(kept)
            except ValueError:
                if len(kept) > _KEPT:
                    raise ClientGone("terminal sizes that are not JSON") from None
                break
            except RecursionError:
                raise ClientGone("terminal sizes that are not JSON") from None
            kept = kept[end:].lstrip(_BLANKS)
            if size := _size(value):
                yield size


def _size(untrusted: object) -> Size | None:
    if not isinstance(untrusted, dict):
        raise ClientGone("a terminal size that is no object")
    rows, columns = untrusted.get("Height"), untrusted.get("Width")
    for number in (rows, columns):
        if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number <= _MOST:
            raise ClientGone("a terminal size without Width and Height")
    return Size(rows, columns) if rows and columns else None

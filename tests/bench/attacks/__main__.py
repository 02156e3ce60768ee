"""One kind of attackers, in a separate process: ``python -m tests.bench.attacks KIND GROUND``.

The process prints ``hostile`` after the preparations, and attacks until the end of stdin.  Then a line of
JSON has the ids of pods that the process made, and the outcomes of calls.
"""

from __future__ import annotations

import asyncio
import json
import resource
import sys

from tests.bench.attacks import calls
from tests.bench.attacks.again import BEGUN, OUTCOMES
from tests.bench.attacks.ground import AttackGround
from tests.bench.attacks.kinds import KINDS


async def _attack(kind: str, ground: AttackGround) -> None:
    attacking = asyncio.ensure_future(KINDS[kind].attack(ground))
    ended = asyncio.ensure_future(asyncio.to_thread(sys.stdin.read))
    begun = asyncio.ensure_future(BEGUN.wait())
    await asyncio.wait([attacking, begun], return_when=asyncio.FIRST_COMPLETED)
    sys.stdout.write("hostile\n")
    sys.stdout.flush()
    await asyncio.wait([attacking, ended], return_when=asyncio.FIRST_COMPLETED)
    if attacking.done():
        attacking.result()  # the attack ends only by a bug of its own
    sys.stdout.write(f"{json.dumps([calls.MADE, OUTCOMES])}\n")
    sys.stdout.flush()
    attacking.cancel()
    await asyncio.wait([attacking])


def main() -> None:
    kind, ground = sys.argv[1:]
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 8192), hard))
    asyncio.run(_attack(kind, AttackGround.of(ground)))


if __name__ == "__main__":
    main()

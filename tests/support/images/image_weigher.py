"""A program that imports an image, and reports its own memory use, without its children's.

Arguments: a state directory, the path of a layout. Prints {"peak": ..., "left": ...} in bytes: the largest
growth, and the growth in the end.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path

from images.image_settings import ImageSettings
from tests.support.images.image_manager import running

ROOT = Path(__file__).parents[3]


def weigh(state: Path, layout: Path) -> dict[str, int]:
    """Run the program."""
    command = [sys.executable, "-m", "tests.support.images.image_weigher", str(state), str(layout)]
    result: dict[str, int] = json.loads(
        subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout
    )
    return result


def _resident(key: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == key:
            return int(value.split()[0]) * 1024
    raise KeyError(key)


async def _main(state: Path, layout: Path) -> None:
    async with running(ImageSettings(state, state / "certs.d")) as manager:
        before = _resident("VmRSS")
        await manager.import_layout(layout, None)
        grown = {"peak": _resident("VmHWM") - before, "left": _resident("VmRSS") - before}
    sys.stdout.write(json.dumps(grown))


if __name__ == "__main__":
    asyncio.run(_main(Path(sys.argv[1]), Path(sys.argv[2])))

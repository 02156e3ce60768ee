"""Loop devices: taken without races, freed by themselves."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from daemonkit.faults import Broken, Invalid, Missing
from protect.host import loops
from protect.host.loops import Loop, adopt_loop, attach_loop, backing_file, take_loop
from tests.support.waiting import until

pytestmark = [pytest.mark.root, pytest.mark.skipif(os.geteuid() != 0, reason="needs root")]


@pytest.fixture
def image(tmp_path: Path) -> Path:
    path = tmp_path / "image"
    path.write_bytes(b"begin" + bytes(65536 - 8) + b"end")
    return path


def attached(image: Path) -> list[str]:
    """Devices on the file now."""
    found = []
    for backing in Path("/sys/block").glob("loop*/loop/backing_file"):
        try:
            if backing.read_text().strip() == str(image):
                found.append(backing.parts[3])
        except OSError:
            continue  # detached between the two
    return found


async def nobody_has(image: Path) -> None:
    """Wait until the device is free. Other searches for a free device may open a device for a moment."""
    await until(lambda: not attached(image))


async def test_the_device_shows_the_file_and_lives_while_open(image: Path) -> None:
    loop = await attach_loop(image)
    status = os.stat(loop.path)
    assert (os.major(status.st_rdev), os.minor(status.st_rdev)) == (loop.major, loop.minor)
    assert loop.path.read_bytes() == image.read_bytes()
    assert attached(image) == [loop.path.name]
    with pytest.raises(PermissionError), loop.path.open("r+b", buffering=0) as device:
        device.write(b"BEGIN")
    assert image.read_bytes().startswith(b"begin")
    loop.close()
    loop.close()
    await nobody_has(image)


async def test_a_writable_device_writes_to_the_file(image: Path) -> None:
    loop = await attach_loop(image, readonly=False)
    with loop.path.open("r+b") as device:
        device.write(b"BEGIN")
        os.fsync(device.fileno())
    loop.close()
    assert image.read_bytes().startswith(b"BEGIN")


async def test_direct_io_reads_the_image(image: Path) -> None:
    loop = await attach_loop(image, direct=True)
    assert loop.path.read_bytes() == image.read_bytes()
    loop.close()


@pytest.mark.parametrize(("readonly", "direct"), [(True, False), (False, False), (True, True)])
async def test_attached_loop_device_is_autoclear_and_covers_the_whole_file(
    image: Path, readonly: bool, direct: bool
) -> None:
    loop = await attach_loop(image, readonly, direct=direct)
    try:
        block = Path("/sys/block", loop.path.name)
        assert (block / "ro").read_text().strip() == str(int(readonly))
        assert (block / "loop/autoclear").read_text().strip() == "1"
        assert (
            (block / "loop/offset").read_text().strip()
            == (block / "loop/sizelimit").read_text().strip()
            == "0"
        )
        if not direct:  # not every file system can
            assert (block / "loop/dio").read_text().strip() == "0"
        assert int((block / "size").read_text()) == image.stat().st_size // 512
        status = image.stat()
        assert backing_file(loop) == (status.st_dev, status.st_ino)
        assert not os.get_inheritable(loop.fd)
        assert repr(loop) == f"Loop('{loop.path}', open)"
    finally:
        loop.close()
    assert loop.fd == -1 and repr(loop) == f"Loop('{loop.path}', closed)"
    await nobody_has(image)


async def test_descriptors_are_closed_whatever_comes(image: Path, tmp_path: Path) -> None:
    """Errors of the file are immediate; errors of the device, and of invalid files, too."""
    odd = tmp_path / "odd"
    odd.write_bytes(bytes(513))

    def held(*paths: Path) -> list[str]:
        found = []
        for entry in Path("/proc/self/fd").iterdir():
            with suppress(FileNotFoundError):
                found.append(os.readlink(entry))
        return [path for path in found if path in {str(one) for one in paths}]

    loop = take_loop(image)
    assert held(image, loop.path) == [str(loop.path)]
    assert adopt_loop(loop.path, (0, 0)) is None and adopt_loop(Path("/dev/null"), (0, 0)) is None
    assert held(image, loop.path) == [str(loop.path)]
    loop.close()
    for path in (odd, tmp_path / "nothing", tmp_path):
        with pytest.raises((Invalid, Missing)):
            take_loop(path)
    assert held(image, odd, tmp_path, loop.path) == []


async def test_fifty_loop_devices_are_attached_at_once(image: Path) -> None:
    taken = await asyncio.gather(*(attach_loop(image) for _ in range(50)))
    try:
        assert len({loop.path for loop in taken}) == 50
        assert sorted(attached(image)) == sorted(loop.path.name for loop in taken)
    finally:
        for loop in taken:
            loop.close()
    await nobody_has(image)


async def test_loop_device_taken_by_others_is_replaced_by_a_free_device(
    image: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process takes the device that the kernel called free; here many processes at once."""
    monkeypatch.setattr(loops, "_taking", _NoLock())
    taken: list[Loop] = []
    threads = [threading.Thread(target=lambda: taken.append(take_loop(image))) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({loop.path for loop in taken}) == 16
    for loop in taken:
        loop.close()


class _NoLock:
    def __enter__(self) -> None: ...

    def __exit__(self, *exc: object) -> None: ...


async def test_a_killed_owner_leaks_none(image: Path) -> None:
    program = """
import sys
from pathlib import Path
from protect.host.loops import take_loop
loops = [take_loop(Path(sys.argv[1])) for _ in range(3)]
print("there", flush=True)
sys.stdin.read()
"""
    with subprocess.Popen(
        [sys.executable, "-c", program, str(image)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as owner:
        assert owner.stdout is not None and owner.stdout.readline() == b"there\n"
        assert len(attached(image)) == 3
        owner.send_signal(signal.SIGKILL)
    await nobody_has(image)


async def test_a_cancelled_attach_leaks_none(image: Path) -> None:
    for _ in range(5):
        attempt = asyncio.create_task(attach_loop(image))
        await asyncio.sleep(0)
        attempt.cancel()
        with pytest.raises(asyncio.CancelledError):
            await attempt
    loop = await attach_loop(image)  # the same threads have made the calls before, or make them now
    loop.close()
    await nobody_has(image)


async def test_an_attached_loop_device_can_be_adopted(image: Path, tmp_path: Path) -> None:
    loop = await attach_loop(image)
    again = adopt_loop(loop.path, backing_file(loop))
    assert again is not None
    loop.close()
    assert attached(image) == [again.path.name]
    assert adopt_loop(again.path, (0, 0)) is None
    again.close()
    await nobody_has(image)
    assert adopt_loop(loop.path, (0, 0)) is None
    assert adopt_loop(Path("/dev/no-such"), (0, 0)) is None
    assert adopt_loop(Path("/dev/null"), (0, 0)) is None


async def test_unsuitable_file_is_not_attached_to_a_loop_device(tmp_path: Path) -> None:
    odd, empty, fifo = tmp_path / "odd", tmp_path / "empty", tmp_path / "fifo"
    odd.write_bytes(bytes(1000))
    empty.touch()
    os.mkfifo(fifo)
    for path, cause in (
        (odd, "size 1000 is not a positive multiple of 512"),
        (empty, "size 0 is not"),
        (fifo, "not a regular file"),
        (tmp_path, "not a regular file"),
    ):
        with pytest.raises(Invalid, match=f"attach loop device {path}: {cause}"):
            await attach_loop(path)
    with pytest.raises(Broken, match="Is a directory"):
        await attach_loop(tmp_path, readonly=False)
    with pytest.raises(Missing, match="no such file"):
        await attach_loop(tmp_path / "nothing")
    with pytest.raises(Broken):
        await attach_loop(odd / "below-a-file")

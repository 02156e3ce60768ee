"""A daemon's start, its process, logs, readiness and checkpoints."""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from daemonkit import checkpoints, daemon, lifecycle, logs
from daemonkit.checkpoints import FaultInjection
from daemonkit.convert import WrongKey
from daemonkit.faults import Broken, Refused

ROOT = Path(__file__).resolve().parents[3]


def line(message: str, *, journal: bool = False, level: int = logging.INFO, **values: object) -> str:
    record = logging.LogRecord("zone", level, "f.py", 1, message, (), None)
    vars(record).update(logs.fields(**values))
    return logs.LineFormatter(journal=journal).format(record)


def test_a_line_has_its_fields() -> None:
    text = line("zone runs", zone="a-1", seconds=0.12345649, why="two words")
    assert text.endswith('info zone: zone runs zone=a-1 seconds=0.123456 why="two words"')


def test_untrusted_text_cannot_forge_a_line() -> None:
    text = line("said x\n2026 error", name='a\nb" c=d', escape="\x1b[31m")
    assert "\n" not in text and "\x1b" not in text
    assert 'name="a\\nb\\" c=d"' in text


def test_a_value_is_bounded() -> None:
    assert len(line("x", value="y" * 100_000)) < 3000


def test_the_journal_gets_a_priority_on_every_line() -> None:
    try:
        raise KeyError("k")
    except KeyError:
        record = logging.LogRecord("z", logging.ERROR, "f", 1, "bad", (), sys.exc_info())
    text = logs.LineFormatter(journal=True).format(record)
    assert len(text.split("\n")) > 2
    assert all(part.startswith("<3>") for part in text.split("\n"))


def test_an_unknown_level_is_refused() -> None:
    with pytest.raises(ValueError, match="loud"):
        logs.setup("loud")


@pytest.mark.parametrize("abstract", [False, True])
def test_readiness_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, abstract: bool) -> None:
    name = f"@xenpod-test-{os.getpid()}" if abstract else str(tmp_path / "n")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(name.replace("@", "\0"))
        monkeypatch.setenv("NOTIFY_SOCKET", name)
        assert lifecycle.notify_ready("serving")
        assert manager.recv(100) == b"READY=1\nSTATUS=serving"
        assert lifecycle.stopping()
        assert manager.recv(100) == b"STOPPING=1"


def test_a_missing_manager_is_fine_and_a_dead_manager_is_logged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    assert not lifecycle.notify_ready()
    assert not caplog.records
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "gone"))
    assert not lifecycle.notify_ready()
    assert "was not told READY=1" in caplog.text


_STEPS = """
import sys
from daemonkit.checkpoints import arm, checkpoint, checkpoint_names

def two():
    checkpoint("run.two")
    print("two", flush=True)

if sys.argv[1] == "names":
    print(*checkpoint_names())
    sys.exit()
arm(sys.argv[1])
for turn in range(3):
    checkpoint("run.one")
    print("one", flush=True)
    two()
"""


def stepping(folder: Path, argument: str, program: str = _STEPS) -> subprocess.CompletedProcess[str]:
    (folder / "steps.py").write_text(program)
    command = [sys.executable, str(folder / "steps.py"), argument]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("kill_at", "said"),
    [("", 6), ("run.one", 0), ("run.two", 1), ("run.one:2", 2), ("run.two:3", 5), ("run.two:4", 6)],
)
def test_the_process_dies_at_its_armed_step(tmp_path: Path, kill_at: str, said: int) -> None:
    done = stepping(tmp_path, kill_at)
    assert done.returncode == (0 if said == 6 else -signal.SIGKILL)
    assert len(done.stdout.split()) == said


def test_steps_are_collected_from_the_source(tmp_path: Path) -> None:
    assert stepping(tmp_path, "names").stdout.split() == ["run.two", "run.one"]


@pytest.mark.parametrize("wrong", ["run.unknown", "run.one:0", "run.one:x", "run.one:-1"])
def test_a_misspelt_step_is_refused(tmp_path: Path, wrong: str) -> None:
    done = stepping(tmp_path, wrong)
    assert done.returncode == 1 and not done.stdout
    said = "known: run.two, run.one" if wrong == "run.unknown" else "is not a positive number"
    assert f"Invalid: arm checkpoint {wrong.partition(':')[0]}: " in done.stderr and said in done.stderr


@pytest.mark.parametrize(
    "call", ['checkpoint("Not A Name")', "checkpoint(name)", 'checkpoint(f"run.{name}")']
)
def test_a_step_with_an_invalid_name_is_refused(tmp_path: Path, call: str) -> None:
    done = stepping(tmp_path, "run.one", _STEPS.replace('checkpoint("run.two")', call))
    assert done.returncode == 1 and not done.stdout
    assert "steps.py:6: checkpoint(" in done.stderr and "want lower-case words" in done.stderr


@dataclass(frozen=True)
class Settings:
    """The settings of every daemon, and a key of its own."""

    log_level: str = "info"
    faults: FaultInjection = FaultInjection()
    name: str = ""


def start(folder: Path, text: str, *arguments: str) -> tuple[int, list[Settings]]:
    """The daemon's exit status, and the configurations of its runs."""
    served: list[Settings] = []

    async def serve(config: Settings, stop: asyncio.Event) -> None:
        assert not stop.is_set()
        served.append(config)

    (folder / "d.toml").write_text(text)
    status = daemon.main("testd", "A test.", Settings, folder / "d.toml", serve, arguments)
    return status, served


@pytest.fixture
def root_logger() -> Iterator[logging.Logger]:
    """The root logger; a daemon's start changes the root logger."""
    handlers, level = logging.root.handlers[:], logging.root.level
    yield logging.root
    logging.root.handlers[:] = handlers
    logging.root.setLevel(level)


def test_a_daemon_serves_with_its_configuration(tmp_path: Path, root_logger: logging.Logger) -> None:
    assert start(tmp_path, 'name = "default"') == (0, [Settings(name="default")])
    (tmp_path / "other.toml").write_text('name = "other"\nlog_level = "error"')
    other = Settings("error", name="other")
    assert start(tmp_path, "", "--config", str(tmp_path / "other.toml")) == (0, [other])
    assert root_logger.level == logging.ERROR


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("name = 1", "key 'name': want a string, got an integer"),
        ("[faults]\nkill = 1", "unknown key 'faults.kill'; known here: kill_at"),
        ('log_level = "loud"', "log level 'loud' is not one of debug, info, warning, error"),
        (
            '[faults]\nkill_at = "no.step"',
            "d.toml: key 'faults.kill_at': arm checkpoint no.step: no such step",
        ),
    ],
)
def test_a_failed_start_has_its_reason(
    tmp_path: Path, root_logger: logging.Logger, capsys: pytest.CaptureFixture[str], text: str, said: str
) -> None:
    assert start(tmp_path, text) == (2, [])
    error = capsys.readouterr().err
    assert error.startswith("testd: ") and said in error


def test_wrong_key_found_at_start_is_told_with_its_file(
    tmp_path: Path, root_logger: logging.Logger, capsys: pytest.CaptureFixture[str]
) -> None:
    """Alone, and out of task groups; other ends of a task group keep their own words."""

    async def fail(error: Exception) -> None:
        raise error

    async def grouped(*errors: Exception) -> None:
        async with asyncio.TaskGroup() as group:
            for error in errors:
                group.create_task(fail(error))

    path = tmp_path / "d.toml"
    path.write_text("")
    wrong = WrongKey("a.b", "no such file")
    for begin in (lambda: fail(wrong), lambda: grouped(wrong)):

        async def serve(_: Settings, stop: asyncio.Event, begin: Any = begin) -> None:
            await begin()

        assert daemon.main("testd", "A test.", Settings, path, serve, ()) == 1
        assert f"read configuration {path}: key 'a.b': no such file" in capsys.readouterr().err

    async def mixed(_: Settings, stop: asyncio.Event) -> None:
        await grouped(wrong, RuntimeError("a bug"))

    assert daemon.main("testd", "A test.", Settings, path, mixed, ()) == 1
    assert "RuntimeError: a bug" in capsys.readouterr().err


def test_a_daemon_lists_its_checkpoints_without_a_configuration(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert start(tmp_path, "broken", "--list-checkpoints") == (0, [])
    assert capsys.readouterr().out.split() == checkpoints.checkpoint_names()


def test_a_lock_has_a_single_holder(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with lifecycle.hold_lock(path, Refused("use", "it", "taken")):
        assert path.stat().st_mode & 0o777 == 0o600
        with pytest.raises(Refused, match="use it: taken"):
            with lifecycle.hold_lock(path, Refused("use", "it", "taken")):
                pass
    with lifecycle.hold_lock(path, Refused("use", "it", "taken")):
        pass


def test_a_signal_asks_to_stop_and_the_daemon_finishes() -> None:
    finished = []

    async def serve(stop: asyncio.Event) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        await stop.wait()
        finished.append(True)

    assert lifecycle.run_until_signal(serve) == 0
    assert finished == [True]


def test_a_second_signal_cancels(caplog: pytest.LogCaptureFixture) -> None:
    async def serve(stop: asyncio.Event) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        await stop.wait()
        os.kill(os.getpid(), signal.SIGINT)
        await asyncio.Event().wait()

    assert lifecycle.run_until_signal(serve) == 1
    assert "again" in caplog.text


def test_a_fault_is_a_single_line_and_a_bug_keeps_its_traceback(caplog: pytest.LogCaptureFixture) -> None:
    async def refused(stop: asyncio.Event) -> None:
        raise Refused("listen on", "/s", "taken")

    async def broken(stop: asyncio.Event) -> None:
        raise KeyError("k")

    assert lifecycle.run_until_signal(refused) == 1
    assert caplog.records[-1].getMessage() == "listen on /s: taken" and not caplog.records[-1].exc_info
    assert lifecycle.run_until_signal(broken) == 1
    assert caplog.records[-1].exc_info


def test_faults_of_a_task_group_are_a_line_each(caplog: pytest.LogCaptureFixture) -> None:
    async def refused(stop: asyncio.Event) -> None:
        async with asyncio.TaskGroup():
            raise Refused("listen on", "/s", "taken")

    async def mixed(stop: asyncio.Event) -> None:
        raise ExceptionGroup("both", [Refused("listen on", "/s", "taken"), KeyError("k")])

    assert lifecycle.run_until_signal(refused) == 1
    assert caplog.records[-1].getMessage() == "listen on /s: taken" and not caplog.records[-1].exc_info
    assert lifecycle.run_until_signal(mixed) == 1
    assert caplog.records[-1].exc_info


def test_impossible_directories_are_an_error(tmp_path: Path) -> None:
    lifecycle.make_directories(tmp_path / "a" / "b", tmp_path / "a")
    assert (tmp_path / "a" / "b").stat().st_mode & 0o777 == 0o700
    (tmp_path / "file").touch()
    with pytest.raises(Broken, match="file/x: Not a directory"):
        lifecycle.make_directories(tmp_path / "file" / "x")


def test_the_limit_of_open_files_is_raised() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 65_536 if hard == resource.RLIM_INFINITY else min(hard, 65_536)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    try:

        async def serve(stop: asyncio.Event) -> None:
            assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == wanted

        assert lifecycle.run_until_signal(serve) == 0
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


_BUSY = """
import gc, sys
from daemonkit import lifecycle

async def serve(stop):
    # What statistics of a hundred pods make, and of a daemon's own as much as stays for good.
    kept = [[] for _ in range(50_000)]
    before = [generation["collections"] for generation in gc.get_stats()]
    for _ in range(5):
        passing = [[] for _ in range(6_000)]
        del passing
    print([generation["collections"] for generation in gc.get_stats()] == before, len(kept))

sys.exit(lifecycle.run_until_signal(serve))
"""


def test_burst_of_objects_does_not_start_the_cycle_collector() -> None:
    """By default a burst of objects has all that the daemon keeps walked, many times a second."""
    done = subprocess.run([sys.executable, "-c", _BUSY], cwd=ROOT, text=True, capture_output=True, timeout=60)
    assert done.stdout == "True 50000\n", done.stderr

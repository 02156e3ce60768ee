"""TOML into frozen dataclasses: values, defaults, and errors that name the key."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemonkit.config import Bytes, Seconds, duration, load_config, size
from daemonkit.faults import Invalid, Missing


class Mode(Enum):
    PV = "pv"
    PVH = "pvh"


@dataclass(frozen=True)
class Profile:
    memory: Bytes = Bytes(1)
    boot: Seconds = Seconds(1.0)

    def __post_init__(self) -> None:
        if self.memory == 0:
            raise ValueError("memory is zero")


@dataclass(frozen=True)
class Config:
    name: str
    count: int = 1
    ratio: float = 0.5
    on: bool = False
    where: Path = Path("/x")
    socket: Path | None = None
    mode: Mode = Mode.PV
    words: tuple[str, ...] = ()
    profile: Profile = Profile()
    profiles: Mapping[str, Profile] = field(default_factory=dict)


def read(folder: Path, text: str) -> Config:
    path = folder / "c.toml"
    path.write_text(text)
    return load_config(Config, path)


def test_a_reader_of_anothers_file_sees_its_own_keys(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.write_text("name = 'n'\nother = 3\n[profile]\nboot = 2\nmore = []\n")
    assert load_config(Config, path, unknown_keys=True) == Config("n", profile=Profile(boot=Seconds(2.0)))
    path.write_text("name = 3\nother = 3\n")
    with pytest.raises(Invalid, match="key 'name': want a string"):
        load_config(Config, path, unknown_keys=True)


def test_every_type_is_read(tmp_path: Path) -> None:
    text = """
        name = "n"
        count = 3
        ratio = 2
        on = true
        where = "/a"
        socket = "/s"
        mode = "pvh"
        words = ["a", "b"]
        profile = { memory = "256MiB", boot = "250ms" }
        [profiles.big]
        memory = 5
        boot = 2
    """
    assert read(tmp_path, text) == Config(
        "n", 3, 2.0, True, Path("/a"), Path("/s"), Mode.PVH, ("a", "b"),
        Profile(Bytes(256 << 20), Seconds(0.25)), {"big": Profile(Bytes(5), Seconds(2.0))},
    )  # fmt: skip


def test_absent_keys_get_their_defaults(tmp_path: Path) -> None:
    assert read(tmp_path, 'name = "n"') == Config("n")


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("", "'name' is missing"),
        ("name = 1", "'name': want a string, got an integer"),
        ('name = "n"\ncount = true', "'count': want an integer, got true or false"),
        ('name = "n"\ncount = 1.5', "'count': want an integer, got a number"),
        ('name = "n"\non = 1', "'on': want true or false"),
        ('name = "n"\ncolour = 1', "unknown key 'colour'; known here: count"),
        ('name = "n"\n[profile]\nx = 1', "unknown key 'profile.x'"),
        ('name = "n"\nprofile = 1', "'profile': want a table, got an integer"),
        ('name = "n"\n[profile]\nmemory = "lots"', "'profile.memory': 'lots' is not a size"),
        ('name = "n"\n[profile]\nmemory = -1', "'profile.memory': -1 is negative"),
        ('name = "n"\n[profile]\nmemory = true', "'profile.memory': want a string"),
        ('name = "n"\n[profile]\nmemory = 1.5', "'profile.memory': want a string"),
        ('name = "n"\n[profile]\nboot = "soon"', "'profile.boot': 'soon' is not a duration"),
        ('name = "n"\n[profiles.a]\nmemory = 0', "profiles.a: memory is zero"),
        ('name = "n"\nmode = "hvm"', "'mode': 'hvm' is not one of 'pv', 'pvh'"),
        ('name = "n"\nwords = ["a", 1]', "'words[1]': want a string"),
        ('name = "n"\nname = "m"', "not TOML"),
        ('name = "n"\n[profile]\nboot = nan', "'profile.boot': nan is no duration"),
        ('name = "n"\n[profile]\nboot = inf', "'profile.boot': inf is no duration"),
        (f'name = "n"\n[profile]\nboot = "{"9" * 400}h"', "is longer than anything lasts"),
        (f'name = "n"\n[profile]\nmemory = "{"9" * 400}TiB"', "is more than any machine has"),
        ('name = "n"\nwhere = "/a\\u0000b"', "'where': a path cannot contain a NUL"),
        (f"a = {'[' * 5000}", "nested too deeply"),
    ],
)
def test_error_names_file_and_key(tmp_path: Path, text: str, cause: str) -> None:
    with pytest.raises(Invalid) as caught:
        read(tmp_path, text)
    assert cause in str(caught.value) and str(tmp_path / "c.toml") in str(caught.value)


def test_a_missing_file_is_missing(tmp_path: Path) -> None:
    with pytest.raises(Missing, match="no such file"):
        load_config(Config, tmp_path / "none.toml")


def test_a_folder_or_binary_is_invalid(tmp_path: Path) -> None:
    with pytest.raises(Invalid):
        load_config(Config, tmp_path)
    (tmp_path / "b").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(Invalid, match="not TOML"):
        load_config(Config, tmp_path / "b")


@pytest.mark.parametrize(
    ("text", "count"), [("0", 0), ("7B", 7), ("1 kB", 1000), ("1.5GiB", 3 << 29), ("2TiB", 2 << 40)]
)
def test_sizes_are_parsed_as_bytes(text: str, count: int) -> None:
    assert size(text) == count


@pytest.mark.parametrize(("text", "seconds"), [("1", 1.0), ("250ms", 0.25), ("2m", 120.0), ("1.5h", 5400.0)])
def test_durations_are_parsed_as_seconds(text: str, seconds: float) -> None:
    assert duration(text) == seconds


@given(st.text())
def test_sizes_and_durations_only_ever_fail_with_value_error(text: str) -> None:
    for parse in (size, duration):
        try:
            assert parse(text) >= 0
        except ValueError as error:
            assert repr(text) in str(error)

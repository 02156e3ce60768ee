"""docs/configuration.md is up to date with the code and the examples; daemons accept its ranges."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from daemonkit.config import Bytes, Seconds, at_least, at_most, longer_than_nothing
from daemonkit.convert import WrongKey
from protect.config import ZoneLimits
from tools.docgen import configuration, example, keys


def test_the_page_is_up_to_date() -> None:
    assert configuration.PAGE.read_text() == configuration.page(), "run make reference"


@dataclass(frozen=True, slots=True)
class Numbers:
    """A key of each kind of range."""

    any: int = 5
    some: Bytes = Bytes(64 << 20)
    off_or_some: Bytes = Bytes(0)
    whole_mebibytes: Bytes = Bytes(8 << 20)
    short: Seconds = Seconds(2.0)
    share: float = 0.0

    def __post_init__(self) -> None:
        at_least(1, self, "any")
        at_most(99, self, "any")
        at_least(16 << 20, self, "some")
        if 0 < self.off_or_some < 4096:
            raise WrongKey("off_or_some", "too little")
        if self.whole_mebibytes % (1 << 20) or not self.whole_mebibytes:
            raise WrongKey("whole_mebibytes", "not whole")
        longer_than_nothing(self, "short")
        if self.short >= 300:
            raise WrongKey("short", "too long")
        at_most(1, self, "share")
        at_least(0, self, "share")


def test_ranges_match_the_class() -> None:
    [(_, found)] = keys.tables(Numbers)
    assert {key.name: (key.values, key.default) for key in found} == {
        "any": ("number, 1 to 99", "5"),
        "some": ("size, 16MiB or more", '"64MiB"'),
        "off_or_some": ("size, 0, or 4KiB or more", "0"),
        "whole_mebibytes": ("size, 1MiB or more", '"8MiB"'),
        "short": ("duration, more than 0s, to less than 5m", '"2s"'),
        "share": ("number, 0 to 1", "0.0"),
    }


def test_comments_belong_to_the_keys_below_them(tmp_path: Path) -> None:
    path = tmp_path / "x.toml"
    path.write_text(
        "# The file.\n\n# Of one.\none = 1\n# Of two,\n# and three.\ntwo = 2\n# three = 3\n# two = 7\n"
        "\n# Nobody's.\n\n# The table.\n[a.b]\nfour = 4\n"
    )
    top, table = example.read_example(path)
    assert (top.path, top.text, table.path, table.text) == ("", "The file.", "a.b", "The table.")
    assert [(group.text, group.keys, group.examples) for group in top.groups] == [
        ("Of one.", ["one"], []),
        ("Of two, and three.", ["two", "three"], ["two = 7"]),
    ]


@pytest.mark.parametrize(
    ("before", "after", "names"),
    [
        (
            "# How often protectd looks at zones with the dynamic memory policy.\npolicy_period",
            "policy_period_",
            "policy_",
        ),
        ('policy_period = "5s"\n', "", "policy_period"),
        ("[scratch]", "[scrotch]", "scratch"),
    ],
)
def test_an_undocumented_key_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: str, after: str, names: str
) -> None:
    (tmp_path / "packaging").mkdir()
    for name, *_ in configuration.FILES:
        text = (configuration.ROOT / "packaging" / name).read_text()
        (tmp_path / "packaging" / name).write_text(text.replace(before, after))
    monkeypatch.setattr(configuration, "ROOT", tmp_path)
    with pytest.raises(configuration.Undocumented, match=names):
        configuration.page()


def test_limits_named_on_other_pages_are_the_defaults() -> None:
    page = (Path(configuration.ROOT) / "docs/limits.md").read_text()
    rows = re.findall(r"^\| .+ \| (?P<limit>.+) \| `limits\.(?P<key>\w+)` \|$", page, re.MULTILINE)
    assert len(rows) >= 5
    wrong = [key for limit, key in rows if not limit.startswith(str(getattr(ZoneLimits(), key)))]
    assert wrong == []

"""Random layers, with every kind of change to a lower layer."""

from __future__ import annotations

import random
from dataclasses import replace

from tests.support.images.images import Layer, Seen


def timeless(tree: dict[bytes, Seen]) -> dict[bytes, Seen]:
    """umoci gives directories the time of unpacking where a later entry made something in them."""
    return {name: replace(one, mtime=0) if one.kind == "d" else one for name, one in tree.items()}


def random_layer(rng: random.Random, files: list[str]) -> Layer:
    names = [
        "w",
        "x",
        "y",
        "d",
        "d/e",
        "d/f",
        "d/g",
        "d/g/h",
        "d/g/i",
        "a/b/c",
        "./a",
        "/b",
        "../c",
        "b/../../a/z",
    ]
    targets = ["d", "d/g", "w", "/", "..", "../c", "nope/x", "../../..", "/b/../a", "."]
    layer = Layer()
    for _ in range(rng.randint(1, 7)):
        name, choice = rng.choice(names), rng.random()
        if choice < 0.35:
            data = bytes([rng.randrange(97, 123)]) * rng.choice([0, 1, 600, 140_000])
            files.append(name)
            layer.file(name, data, mode=rng.choice([0o644, 0o4755, 0]), uid=rng.choice([0, 3_000_000]))
        elif choice < 0.55:
            layer.dir(name, mode=rng.choice([0o755, 0o1777]))
        elif choice < 0.68:
            layer.symlink(name, rng.choice(targets))
        elif choice < 0.80 and files:
            layer.link(name, rng.choice(files))
        else:
            above, _, base = name.rpartition("/")
            layer.file(f"{above}/" * bool(above) + rng.choice([f".wh.{base}", ".wh..wh..opq"]))
    return layer

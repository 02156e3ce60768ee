"""Checks of the source itself, as tests: linters, types, import rules, generated files, sizes."""

from __future__ import annotations

import ast
import filecmp
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.checks.packages import PACKAGES, ROOT, TESTS, C, note

BIN = Path(sys.executable).parent
PRODUCT = (*PACKAGES, *C)
FILE_LINES = 300
TEST_FILE_LINES = 600
FUNCTION_LINES = 60


def check(*command: str, cwd: Path = ROOT) -> None:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}{done.stderr}"


def sources(*folders: str, suffixes: tuple[str, ...]) -> Iterator[Path]:
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in suffixes and "build" not in path.relative_to(ROOT).parts:
                yield path


def test_ruff_check_finds_no_fault() -> None:
    check(str(BIN / "ruff"), "check", ".")


def test_ruff_format_would_change_no_file() -> None:
    check(str(BIN / "ruff"), "format", "--check", ".")


def test_mypy_strict_finds_no_error() -> None:
    check(str(BIN / "mypy"))


def test_imports_keep_the_rules_of_layers() -> None:
    check(str(BIN / "lint-imports"))


def test_stubs_equal_the_generated_stubs(tmp_path: Path) -> None:
    proto = ROOT / "proto"
    contracts = sorted(path.relative_to(proto) for path in proto.rglob("*.proto"))
    assert contracts
    for contract in contracts:
        (tmp_path / contract).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(proto / contract, tmp_path / contract)
    check(
        sys.executable, "-m", "grpc_tools.protoc", "-I.", "--python_out=.", "--grpc_python_out=.",
        "--mypy_out=.", "--mypy_grpc_out=.", f"--plugin=protoc-gen-mypy={BIN}/protoc-gen-mypy",
        f"--plugin=protoc-gen-mypy_grpc={BIN}/protoc-gen-mypy_grpc", *map(str, contracts), cwd=tmp_path,
    )  # fmt: skip
    made = sorted(path.relative_to(tmp_path) for path in tmp_path.rglob("*_pb2*"))
    assert len(made) == 4 * len(contracts)
    stale = [str(path) for path in made if not _same(tmp_path / path, proto / path)]
    assert stale == [], "run `make proto`"


def _same(made: Path, kept: Path) -> bool:
    return kept.exists() and filecmp.cmp(made, kept, shallow=False)


@pytest.mark.parametrize(("folders", "limit"), [(PRODUCT, FILE_LINES), ((TESTS,), TEST_FILE_LINES)])
def test_long_files_are_noted(folders: tuple[str, ...], limit: int) -> None:
    lines = {
        path: len(path.read_text().splitlines())
        for path in sources(*folders, suffixes=(".py", ".c", ".h"))
        if not path.name.startswith("_libxl")
    }
    assert lines
    for path, count in lines.items():
        if count > limit:
            note(f"{path.relative_to(ROOT)} has {count} lines; more than {limit} may tell of two things")


def test_functions_are_short() -> None:
    long = [
        f"{path.relative_to(ROOT)}:{node.lineno} {node.name}: {length}"
        for path in sources(*PRODUCT, suffixes=(".py",))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (length := (node.end_lineno or node.lineno) - node.lineno + 1) > FUNCTION_LINES
    ]
    assert long == [], f"more than {FUNCTION_LINES} lines"


def test_shell_scripts_parse() -> None:
    scripts = [
        path
        for path in ROOT.rglob("*")
        if path.is_file()
        and not {".venv", ".git", "build"} & set(path.relative_to(ROOT).parts)
        and path.read_bytes()[:20].startswith((b"#!/bin/sh", b"#!/usr/bin/env bash", b"#!/bin/bash"))
    ]
    assert scripts
    for script in scripts:
        shell = "sh" if script.read_bytes().startswith(b"#!/bin/sh") else "bash"
        check(shell, "-n", str(script))


@pytest.mark.parametrize("name", ["LICENSE", "README.md", "CONTRIBUTING.md", "CHANGELOG.md", ".ci/run"])
def test_file_of_the_project_is_not_empty(name: str) -> None:
    assert (ROOT / name).stat().st_size > 0

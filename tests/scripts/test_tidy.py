"""scripts/tidy.py: what changed comes first, what is known is not run again, what the time left out is named."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def tidy():
    spec = importlib.util.spec_from_file_location("tidy", ROOT / "scripts/tidy.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["tidy"] = module
    spec.loader.exec_module(module)
    return module


def git(tree: Path, *words: str) -> None:
    subprocess.run(
        ["git", "-c", "user.name=t", "-c", "user.email=t@t", *words], cwd=tree, check=True, capture_output=True
    )


@pytest.fixture
def tree(tmp_path, monkeypatch):
    """Five sources, of which two include one header; clang-tidy is a script that notes its files and finds `bad`."""
    (tmp_path / "core").mkdir()
    (tmp_path / "core/shared.h").write_text("int a;\n")
    for name in "abcde":
        include = '#include "core/shared.h"\n' if name in "ce" else ""
        (tmp_path / f"core/{name}.cc").write_text(f"{include}int {name};\n")
    (tmp_path / "build").mkdir()
    database = [{"file": str(tmp_path / f"core/{name}.cc")} for name in "abcde"]
    (tmp_path / "build/compile_commands.json").write_text(json.dumps(database))
    (tmp_path / ".gitignore").write_text("/build\n/bin\n/.cache\n/ran\n")
    programs = tmp_path / "bin"
    programs.mkdir()
    program = programs / "clang-tidy-14"
    program.write_text(
        '#!/bin/sh\nfor last; do :; done\necho "$last" >>ran\n'
        'if grep -q bad "$last"; then echo "$last:1:1: error: bad"; exit 1; fi\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", "-A")
    git(tmp_path, "commit", "-qm", "one")
    return tmp_path


def checked(tidy, tree: Path, seconds: float = 60):
    (tree / "ran").unlink(missing_ok=True)
    check = tidy.Tidy(tree, tree / "build", "HEAD", seconds)
    found = check.run()
    ran = (tree / "ran").read_text().split() if (tree / "ran").exists() else []
    return sorted(Path(name).stem for name in ran), found, sorted(Path(name).stem for name in check.left_out)


def test_what_passed_is_run_again_only_when_it_or_a_header_of_it_changes(tidy, tree):
    assert checked(tidy, tree) == (list("abcde"), [], [])
    assert checked(tidy, tree) == ([], [], [])
    (tree / "core/shared.h").write_text("long a;\n")
    assert checked(tidy, tree) == (["c", "e"], [], [])
    (tree / ".clang-tidy").write_text("Checks: other\n")
    assert checked(tidy, tree) == (list("abcde"), [], [])


def test_what_fails_is_told_each_time(tidy, tree):
    (tree / "core/b.cc").write_text("int bad;\n")
    for ran in (list("abcde"), ["b"]):
        assert checked(tidy, tree) == (ran, ["core/b.cc:1:1: error: bad"], [])


def test_changed_files_come_first_and_the_others_begin_elsewhere_at_each_commit(tidy, tree):
    (tree / "core/shared.h").write_text("long a;\n")
    firsts = set()
    for number in range(12):
        order = [file.stem for file in tidy.Tidy(tree, tree / "build", "HEAD", 60).sources()]
        assert order[:2] == ["c", "e"] and sorted(order) == list("abcde")
        firsts.add(order[2])
        git(tree, "commit", "-q", "--allow-empty", "-m", f"more {number}")
    assert len(firsts) > 1


def test_what_the_time_does_not_reach_is_named(tidy, tree):
    assert checked(tidy, tree, seconds=-1) == ([], [], list("abcde"))

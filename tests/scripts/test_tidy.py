"""scripts/tidy.py: what changed comes first, what is known is not run again, what the time left out is named."""

import json
import os
import subprocess
from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def tidy(load):
    return load("scripts/tidy.py")


def git(tree: Path, *words: str) -> None:
    subprocess.run(
        ["git", "-c", "user.name=t", "-c", "user.email=t@t", *words], cwd=tree, check=True, capture_output=True
    )


CLANG_TIDY = """#!/usr/bin/env python3
import re, sys
file = sys.argv[2]
sources = re.findall(r'#include "(.*)"', open(file).read()) if "UnifiedSource" in file else [file]
with open("ran", "a") as ran:
    print(*sources, file=ran)
texts = {source: open(source).read() for source in sources}
if len(sources) > 1 and any("alone" in text for text in texts.values()):
    print(f"{file}:1:1: error: redefinition [clang-diagnostic-error]")
    sys.exit(1)
bad = [source for source, text in texts.items() if "bad" in text]
print(*(f"{source}:1:1: error: bad" for source in bad), sep="\\n")
sys.exit(len(bad))
"""


@pytest.fixture
def tree(tmp_path, monkeypatch):
    """Five sources, of which two include one header; clang-tidy is a script that notes its files and finds `bad`."""
    (tmp_path / "core").mkdir()
    (tmp_path / "core/shared.h").write_text("int a;\n")
    for name in "abcde":
        include = '#include "core/shared.h"\n' if name in "ce" else ""
        (tmp_path / f"core/{name}.cc").write_text(f"{include}int {name};\n")
    (tmp_path / "build").mkdir()
    files = {name: str(tmp_path / f"core/{name}.cc") for name in "abcde"}
    flags = {name: "-O3" if name == "d" else "-O2" for name in "abcde"}
    database = [{"file": file, "command": f"c++ {flags[name]} -o {name}.o -c {file}"} for name, file in files.items()]
    (tmp_path / "build/compile_commands.json").write_text(json.dumps(database))
    (tmp_path / ".gitignore").write_text("/build\n/bin\n/.cache\n/ran\n")
    programs = tmp_path / "bin"
    programs.mkdir()
    program = programs / "clang-tidy-14"
    program.write_text(CLANG_TIDY)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", "-A")
    git(tmp_path, "commit", "-qm", "one")
    return tmp_path


def runs(tidy, tree: Path, seconds: float = 60):
    """What clang-tidy was called for, call by call; what it found; what was left out."""
    (tree / "ran").unlink(missing_ok=True)
    check = tidy.Tidy(tree, tree / "build", "HEAD", seconds)
    found = check.run()
    lines = (tree / "ran").read_text().splitlines() if (tree / "ran").exists() else []
    calls = sorted("".join(sorted(Path(name).stem for name in line.split())) for line in lines)
    return calls, found, sorted(Path(name).stem for name in check.left_out)


def checked(tidy, tree: Path, seconds: float = 60):
    calls, found, left_out = runs(tidy, tree, seconds)
    return sorted("".join(calls)), found, left_out


def test_sources_of_the_same_flags_share_a_run(tidy, tree):
    assert runs(tidy, tree) == (["abce", "d"], [], [])


def test_a_source_that_is_gone_is_left_out(tidy, tree):
    (tree / "core/b.cc").unlink()
    assert checked(tidy, tree) == (list("acde"), [], [])


def test_a_batch_that_does_not_compile_is_checked_source_by_source(tidy, tree):
    (tree / "core/b.cc").write_text("int alone;\n")
    git(tree, "commit", "-qam", "two")
    assert runs(tidy, tree) == (["a", "abce", "b", "c", "d", "e"], [], [])
    assert runs(tidy, tree) == ([], [], [])


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
    (tree / "core/d.cc").write_text("long d;\n")
    firsts = set()
    for number in range(12):
        groups = tidy.Tidy(tree, tree / "build", "HEAD", 60).sources()
        changed, affected, others = ([file.stem for file in group] for group in groups)
        assert (changed, affected, sorted(others)) == (["d"], ["c", "e"], ["a", "b"])
        firsts.add(others[0])
        git(tree, "commit", "-q", "--allow-empty", "-m", f"more {number}")
    assert len(firsts) > 1


def head(tree: Path) -> str:
    return subprocess.run(["git", "rev-parse", "HEAD"], cwd=tree, capture_output=True, text=True).stdout.strip()


def test_what_came_since_the_newest_commit_that_passed_is_new(tidy, tree):
    first = head(tree)
    assert tidy.Tidy(tree, tree / "build", None, 60).base == first  # there is no older one
    for text in ("int bad;\n", "long b;\n"):
        (tree / "core/b.cc").write_text(text)
        git(tree, "commit", "-qam", "more")
        tidy.Tidy(tree, tree / "build", None, 60).run()
        assert tidy.Tidy(tree, tree / "build", None, 60).base == (first if "bad" in text else head(tree))


def test_what_the_time_does_not_reach_is_named(tidy, tree):
    assert checked(tidy, tree, seconds=-1) == ([], [], list("abcde"))


def test_sources_that_were_compiled_in_batches_are_checked_by_their_names(tidy, tree):
    batch = tree / "build/core_batch_1.cc"
    batch.write_text('#include "core/a.cc"\n#include "core/b.cc"\n')
    database = [{"file": str(batch), "command": f"c++ -O2 -o a.o -c {batch}"}]
    (tree / "build/compile_commands.json").write_text(json.dumps(database))
    (tree / "core/b.cc").write_text("int bad;\n")
    assert checked(tidy, tree) == (["a", "b"], ["core/b.cc:1:1: error: bad"], [])

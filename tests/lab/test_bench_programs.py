"""How the programs of bench/ start, and what they refuse."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from lab import private_python
from lab.traces import without_old_traces
from lab_commands import ROOT


@pytest.fixture
def executed(monkeypatch):
    """The calls of execv, of which the first ends the program."""

    class Replaced(BaseException):
        pass

    calls = []

    def execv(*call):
        calls.append(call)
        raise Replaced

    monkeypatch.setattr(os, "execv", execv)

    def use_for(module):
        try:
            private_python.use_for(module)
        except Replaced:
            return calls[-1]
        return None

    return use_for


def test_what_this_python_lacks_is_looked_for_in_the_private_one(executed, monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "argv", ["bench/program", "--option"])
    monkeypatch.setattr(private_python, "PROGRAM", tmp_path / "bin/python")
    assert executed("a_module_that_nobody_has") is None, "there is no private one"
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/python").touch()
    assert executed("json") is None
    program = tmp_path / "bin/python"
    assert executed("a_module_that_nobody_has") == (program, [str(program), "bench/program", "--option"])
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    assert executed("a_module_that_nobody_has") is None, "it is the private one"


@pytest.mark.skipif(not private_python.PROGRAM.exists(), reason="there is no .venv: run scripts/setup")
@pytest.mark.parametrize(
    "program", ["codecs", "compare", "compress_torch", "lateness", "memory", "promises", "plugin_cpu"]
)
def test_programs_start_with_a_python_that_has_no_packages(program):
    command = [sys.executable, "-S", ROOT / "bench" / program, "--help"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(not private_python.PROGRAM.exists(), reason="there is no .venv: run scripts/setup")
@pytest.mark.parametrize(
    "words",
    [
        ("codecs", "--seeds", "0"),
        ("compress_torch", "--rounds", "0"),
        ("lateness", "--steps", "0"),
        ("link_pairs", "--rounds", "-1"),
        ("memory", "--batch", "0"),
        ("optimize", "--trials", "0"),
        ("plugin_cpu", "--rounds", "0"),
        ("promises", "--rounds", "0"),
    ],
    ids=lambda words: words[0],
)
def test_a_program_that_would_measure_nothing_says_so(words):
    program, option, number = words
    command = [sys.executable, ROOT / "bench" / program, option, number]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2
    assert f"argument {option}: '{number}' is no whole number from 1 on" in done.stderr


@pytest.mark.parametrize(
    "words",
    [
        ("codecs", "--model", "cnm"),
        ("codecs", "--dates", "soon"),
        ("codecs", "--dates", "1:2+1", "--precision", "float16"),
        ("compress_torch", "--codecs", "int9"),
        ("compress_torch", "--codecs", "topk/ratio=x"),
        ("lateness", "--", "1:0+1"),
        ("plugin_cpu", "--schemes", "fofi"),
    ],
    ids=" ".join,
)
def test_what_is_wrong_in_a_command_is_said_before_pytorch_is_loaded(words):
    without = f"import runpy, sys; sys.modules['torch'] = None; sys.prefix = {str(private_python.PROGRAM.parents[1])!r}"
    program = str(ROOT / "bench" / words[0])
    run = f"{without}; sys.argv = {[program, *words[1:]]}; runpy.run_path({program!r}, run_name='__main__')"
    done = subprocess.run([sys.executable, "-c", run], capture_output=True, text=True, timeout=120)
    assert done.returncode == 2 and words[-1] in done.stderr, done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [(["--rounds", "2"], "--keep is for one round"), ([], "there is a folder 'straggler' already")],
)
def test_promises_keeps_one_round_in_a_folder_of_its_own(tmp_path, words, said):
    (tmp_path / "straggler").mkdir()
    command = [sys.executable, ROOT / "bench/promises", "--faults", "straggler", "--keep", tmp_path, *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2 and said in done.stderr, done.stderr


def test_old_traces_are_removed_and_nothing_else(tmp_path):
    folder = tmp_path / "a/b"
    assert without_old_traces(folder) == folder and folder.is_dir()
    for name in ("job-node0.trace", "job-node1.trace.part", "notes"):
        (folder / name).touch()
    assert [Path(file).name for file in without_old_traces(folder).iterdir()] == ["notes"]

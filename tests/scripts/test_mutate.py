"""scripts/mutate says `killed` only if a test that passes without the mutation fails with it."""

import fnmatch
import json
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def mutate(load):
    return load("scripts/mutate")


def copy_of(mutate, folder: Path, source: str, test: str):
    """A tree of one Python file and its test, which needs no build."""

    class PythonCopy(mutate.Copy):
        def build(self, _):
            return True

    (folder / "thing.py").write_text(source)
    (folder / "test_thing.py").write_text(f"from thing import larger\n\ndef test_larger():\n    {test}\n")
    (folder / ".venv").symlink_to(sys.prefix)
    return PythonCopy(folder)


SOURCE = "def larger(a, b):\n    return a if a > b else b\n"


@pytest.mark.parametrize(
    ("test", "verdict"),
    [
        ("assert larger(1, 2) == 2", "killed"),
        ("assert larger(2, 2) == 2", "survived"),
        ("assert larger(1, 2) == 1", "its tests fail without it"),
    ],
)
def test_a_mutation_is_killed_only_by_a_test_that_passes_without_it(mutate, tmp_path, test, verdict):
    copy = copy_of(mutate, tmp_path, SOURCE, test)
    mutation = mutate.Mutation("thing.py", "a > b", "a < b", "the smaller one", pytest="test_thing.py")
    [result] = mutate.run(copy, [mutation])
    assert result["verdict"] == verdict
    assert (tmp_path / "thing.py").read_text() == SOURCE


@pytest.mark.parametrize(("hangs_after", "verdict"), [(10**4, "survived"), (0, "killed")])
def test_a_test_hangs_if_it_takes_much_longer_than_without_the_mutation(
    mutate, monkeypatch, tmp_path, hangs_after, verdict
):
    """A slow machine does not make slow tests into a verdict."""
    copy = copy_of(mutate, tmp_path, SOURCE, "assert larger(2, 2) == 2")
    monkeypatch.setattr(mutate, "LEAST_SECONDS", 0.01)
    monkeypatch.setattr(mutate, "HANGS_AFTER", hangs_after)
    mutation = mutate.Mutation("thing.py", "a > b", "a < b", "the smaller one", pytest="test_thing.py")
    [result] = mutate.run(copy, [mutation])
    assert result["verdict"] == verdict


def test_a_text_that_is_not_there_once_is_told(mutate, tmp_path):
    copy = copy_of(mutate, tmp_path, SOURCE, "assert larger(1, 2) == 2")
    mutation = mutate.Mutation("thing.py", "a < b", "a > b", "nothing", pytest="test_thing.py")
    [result] = mutate.run(copy, [mutation])
    assert result["verdict"].startswith("stale: thing.py has 0 times: a < b")


def test_the_list_fits_the_tree(mutate):
    mutations = mutate.read(ROOT / "tests/mutations.json")
    assert json.loads((ROOT / "tests/mutations.json").read_text())
    for mutation in mutations:
        mutate.mutated((ROOT / mutation.file).read_text(), mutation)
        assert mutation.program or mutation.pytest, mutation


def names_of_tests(program: str) -> list[str]:
    """The tests of a test program, as Suite.Name, by its sources."""
    for lists in (ROOT / "tests").rglob("CMakeLists.txt"):
        found = re.search(rf"deft_test\({program}\s[^)]*?SOURCES\s([^)]*?)\b(?:DEPS|\))", lists.read_text())
        if found:
            files = [lists.parent / name for name in found[1].split()]
            text = "\n".join(file.read_text() for file in files if file.is_file())
            names = re.findall(r"\b(?:TEST(?:_[FP])?|TYPED_TEST|RC_GTEST\w*_PROP)\(\s*(\w+),\s*(\w+)", text)
            return [f"{suite}.{name}" for suite, name in names]
    raise AssertionError(f"no CMakeLists.txt has deft_test({program}")


def test_every_filter_names_tests_of_its_programs(mutate):
    for mutation in mutate.read(ROOT / "tests/mutations.json"):
        tests = {program: names_of_tests(program) for program in mutation.program.split()}
        patterns = {re.sub(r"^[^.]*/", "", one).split("/")[0] for one in mutation.filter.split("-")[0].split(":")}
        named = {program: fnmatch_any(names, patterns) for program, names in tests.items()}
        assert all(named.values()), f"{mutation.filter} names no test of a program: {named}"
        assert not tests or set().union(*named.values()) == patterns, f"{mutation.filter} names more than there is"


def fnmatch_any(names: list[str], patterns: set[str]) -> set[str]:
    return {pattern for pattern in patterns if fnmatch.filter(names, pattern)}

"""cmake/batches.py: sources whose names clash never share a batch, so that a batch compiles wherever its sources do."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.skipif(shutil.which("ctags") is None, reason="ctags is not installed")


def batches(root: Path, size: int, sources: dict[str, str]) -> list[list[str]]:
    for name, text in sources.items():
        (root / name).write_text(text)
    words = [sys.executable, ROOT / "cmake/batches.py", root, str(size), *sources]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    return [line.split(";") for line in done.stdout.splitlines()]


def hidden(body: str) -> str:
    return f"namespace deft {{\nnamespace {{\n{body}\n}}  // namespace\nvoid use();\n}}\n"


def test_sources_without_a_clash_share_batches_of_the_size_that_is_asked_for(tmp_path):
    sources = {f"{name}.cc": hidden(f"constexpr int k{name} = 1;") for name in "abcde"}
    assert batches(tmp_path, 2, sources) == [["a.cc", "b.cc"], ["c.cc", "d.cc"], ["e.cc"]]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("constexpr int kSize = 1;", "constexpr int kSize = 2;"),
        ("constexpr std::uint64_t kSize = std::uint64_t{1} << 62;", "constexpr double kSize = 2;"),
        ("int parse(int a) { return a; }", "double parse(double a) { return a; }"),
        ("struct Row { int a; };", "class Row { int b; };"),
        ('MATCHER_P(IsA, a, "") { return arg == a; }', 'MATCHER_P(IsA, a, "") { return arg != a; }'),
    ],
)
def test_names_of_two_anonymous_namespaces_keep_sources_apart(tmp_path, first, second):
    sources = {"a.cc": hidden(first), "b.cc": hidden(second), "c.cc": hidden("int other;")}
    assert batches(tmp_path, 6, sources) == [["a.cc", "c.cc"], ["b.cc"]]


def test_a_hidden_name_that_another_source_defines_for_all_keeps_them_apart(tmp_path):
    sources = {
        "a.cc": hidden("int parse(int a) { return a; }"),
        "b.cc": "namespace deft {\nint parse(int a) { return a; }\n}",
    }
    assert batches(tmp_path, 6, sources) == [["a.cc"], ["b.cc"]]


def test_macros_keep_sources_apart_and_tests_do_not(tmp_path):
    sources = {"a.cc": "#define SIZE 1\n", "b.cc": "#define SIZE 2\n"}
    assert len(batches(tmp_path, 6, sources)) == 2
    sources = {
        "a.cc": hidden("TEST(Ring, One) { EXPECT_TRUE(1); }"),
        "b.cc": hidden("TEST(Ring, Two) { EXPECT_TRUE(1); }"),
    }
    assert len(batches(tmp_path, 6, sources)) == 1

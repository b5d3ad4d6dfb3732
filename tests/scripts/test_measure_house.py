"""The measures of the house count what they say."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.skipif(shutil.which("ctags") is None, reason="needs universal-ctags")


def write(root: Path, path: str, text: str) -> None:
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def measure(root: Path) -> dict[str, str]:
    done = subprocess.run(
        [sys.executable, ROOT / "scripts/measure_house", root], capture_output=True, text=True, check=True
    )
    return dict(line.split(": ", 1) for line in done.stdout.splitlines())


def small_tree(root: Path) -> None:
    write(root, "core/base/option_table.cc", '    OptionSpec{"policy", kChoice},\n    OptionSpec{"links", kString},\n')
    write(root, "core/model/a.h", "struct Request { int x; };\n")


def test_a_small_tree(tmp_path):
    small_tree(tmp_path)
    found = measure(tmp_path)
    assert found["options"] == "2"
    assert found["product lines"] == "3"
    assert found["import circles"] == "0"
    assert found["files under 50 lines in core and daemon"] == "2 of 2"
    assert found["classes over 20 methods or 12 members"] == "0"
    assert found["type names with several definitions"] == "0"


def test_what_is_wrong_is_counted(tmp_path):
    small_tree(tmp_path)
    write(tmp_path, "core/model/b.h", "class Request {\n" + "".join(f"  void f{i}();\n" for i in range(21)) + "};\n")
    write(tmp_path, "core/model/c.h", '#include "core/model/d.h"\n' + "\n" * 60)
    write(tmp_path, "core/model/d.h", '#include "core/model/c.h"\n' + "\n" * 60)
    write(tmp_path, "bench/lab/job.py", "def f():\n    from lab import links\n")
    write(tmp_path, "bench/lab/links.py", "from lab.job import f\n")
    found = measure(tmp_path)
    assert found["classes over 20 methods or 12 members"] == "1"
    assert found["type names with several definitions"] == "1"
    assert found["type names with several meanings"] == "1"
    assert found["import circles"] == "2"
    assert found["files under 50 lines in core and daemon"] == "3 of 5"


def test_a_name_with_one_meaning_is_not_counted(tmp_path):
    small_tree(tmp_path)
    write(tmp_path, "core/model/b.h", "class Table {\n  struct Request { int x; };\n};\n")  # Table::Request
    write(tmp_path, "core/model/b.cc", "namespace {\nstruct Request { int x; };\n}  // namespace\n")
    write(tmp_path, "core/ipc/messages.h", "struct Request { int x; };\n")
    for backend in ("gloo", "tcp"):
        write(tmp_path, f"core/link/{backend}/link_impl.h", f"namespace {backend} {{\nclass LinkImpl {{}};\n}}\n")
    write(tmp_path, "plugins/python/deft/session.py", "class Request:\n    pass\n")
    write(tmp_path, "plugins/torch/session.py", "class Request(session.Request):\n    pass\n")
    found = measure(tmp_path)
    assert found["type names with several definitions"] == "2"  # Request and LinkImpl
    assert found["type names with several meanings"] == "0"


FIXED = ("classes over 20 methods or 12 members", "import circles", "type names with several meanings")


def test_the_table_of_the_architecture_has_what_is_measured():
    text = (ROOT / "docs/architecture.md").read_text()
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("|")]
    table = {row[0]: row[-1] for row in cells}
    found = measure(ROOT)
    assert {name: table[name] for name in FIXED} == {name: found[name] for name in FIXED}
    assert set(found) <= set(table)


def test_the_longest_function_is_named(tmp_path):
    small_tree(tmp_path)
    write(tmp_path, "tools/deft_launcher/a.py", "def long():\n" + "    print()\n" * 30)
    write(tmp_path, "core/model/e.cc", "int shorter() {\n  return 1;\n}\n")
    assert measure(tmp_path)["longest function"] == "31 lines: tools/deft_launcher/a.py: long"

"""scripts/class_budget.py counts what a class declares, in C++ and in Python; exceptions hold while they are needed."""

import shutil
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(shutil.which("ctags") is None, reason="ctags is not installed")


@pytest.fixture(scope="module")
def budget(load):
    return load("scripts/class_budget.py")


def cpp(methods: int, members: int, more: str = "") -> str:
    lines = [f"  [[nodiscard]] std::vector<int> method_{i}(const std::string& a, int b) const;" for i in range(methods)]
    lines += [f"  std::map<int, std::vector<double>> member_{i}_;  // of each" for i in range(members)]
    return "\n".join(["namespace deft {", "class Thing final : public Base {", " public:", more, *lines, "};", "}"])


def python(methods: int, members: int) -> str:
    lines = ["class Thing:", "    def __init__(self):", "        self.first = 1"]
    lines += [f"        self.member_{i} = {i}" for i in range(members - 1)]
    for i in range(methods):
        lines += [f"    def method_{i}(self):", "        return self.first"]
    return "\n".join(lines) + "\n"


def found(budget, folder: Path, name: str, text: str, exceptions=None) -> list[str]:
    file = folder / name
    file.write_text(text)
    files = ([file], []) if name.endswith(".h") else ([], [file])
    return budget.check(folder, *files, exceptions or {})


BOILERPLATE = """
  Thing();
  explicit Thing(int a) : member_0_() {}
  ~Thing() override;
  Thing(const Thing&) = delete;
  Thing& operator=(const Thing&) = delete;
  static constexpr int kSize = 3;
"""


def test_what_is_within_the_budget_passes(budget, tmp_path):
    assert found(budget, tmp_path, "thing.h", cpp(20, 12, BOILERPLATE)) == []
    assert found(budget, tmp_path, "thing.py", python(20, 12)) == []


@pytest.mark.parametrize(("methods", "members"), [(21, 3), (3, 13), (30, 30)])
def test_what_exceeds_it_is_named_with_its_numbers(budget, tmp_path, methods, members):
    for name, text in (("thing.h", cpp(methods, members)), ("thing.py", python(methods, members))):
        [line] = found(budget, tmp_path, name, text)
        assert line.startswith(f"{name}: class Thing: ")
        assert (f"{methods} methods" in line) == (methods > 20)
        assert (f"{members} data members" in line) == (members > 12)


def test_overloads_count_one_by_one(budget, tmp_path):
    [line] = found(budget, tmp_path, "thing.h", cpp(20, 1, "  void method_0(int a);"))
    assert "21 methods" in line


def test_an_array_whose_size_is_a_call_is_a_member(budget, tmp_path):
    more = "  std::array<std::uint64_t, kNames.size()> counts_{};\n  static constexpr std::array<int, f()> kOther{};"
    [line] = found(budget, tmp_path, "thing.h", cpp(3, 12, more))
    assert "13 data members" in line
    nested = f"  struct Inner {{\n{more}\n  }};"
    assert found(budget, tmp_path, "thing.h", cpp(3, 12, nested)) == []


def test_plain_data_may_have_any_number_of_members(budget, tmp_path):
    members = "\n".join(f"  int a{i} = 0;" for i in range(40))
    assert found(budget, tmp_path, "data.h", f"struct Data {{\n{members}\n}};\n") == []
    fields = "\n".join(f"    a{i}: int = 0" for i in range(40))
    assert found(budget, tmp_path, "data.py", f"@dataclass\nclass Data:\n{fields}\n    def sum(self): return 0\n") == []


def test_an_exception_needs_a_reason_and_a_class_that_is_too_large(budget, tmp_path):
    large, small = cpp(21, 1), cpp(2, 1)
    key = ("thing.h", "Thing")
    assert found(budget, tmp_path, "thing.h", large, {key: "a table of callbacks"}) == []
    assert "give the reason" in found(budget, tmp_path, "thing.h", large, {key: ""})[0]
    assert "remove the line" in found(budget, tmp_path, "thing.h", small, {key: "a table of callbacks"})[0]
    (tmp_path / "list.txt").write_text("# why\nthing.h Thing a table of callbacks\n")
    assert budget.read_exceptions(tmp_path / "list.txt") == {key: "a table of callbacks"}

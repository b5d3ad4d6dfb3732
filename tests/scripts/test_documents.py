"""The documents say what the sources say."""

import ast
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
HEADINGS = re.findall(r"^### `(.+)`$", (ROOT / "docs/troubleshooting.md").read_text(), re.MULTILINE)


FOLDERS = ("core", "daemon", "tools", "plugins", "bench")
TOKEN = re.compile(r'"((?:[^"\\\n]|\\.)*)"|//[^\n]*|\'(?:[^\'\\]|\\.)\'|;')


def statements_of_cpp(text: str) -> list[list[str]]:
    """The string literals of each statement, adjoining ones joined."""
    statements, literals, end = [], [], -1
    for token in TOKEN.finditer(text):
        if token[0] == ";":
            statements.append(literals)
            literals = []
        elif token[1] is not None:
            if literals and text[end : token.start()].isspace():
                literals[-1] += token[1]
            else:
                literals.append(token[1])
            end = token.end()
    return statements


def statements_of_python(text: str) -> list[list[str]]:
    statements = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.stmt) and not hasattr(node, "body"):
            found = [n for n in ast.walk(node) if isinstance(n, ast.Constant) and isinstance(n.value, str)]
            found.sort(key=lambda n: (n.lineno, n.col_offset))
            statements.append([n.value for n in found])
    return statements


@pytest.fixture(scope="module")
def messages() -> list[str]:
    """What each statement of the sources may say, with … for what it fills in."""
    statements = statements_of_python((ROOT / "bench/compare").read_text())
    for path in (path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*"))):
        if path.suffix in (".cc", ".h"):
            statements += statements_of_cpp(path.read_text())
        elif path.suffix == ".py":
            statements += statements_of_python(path.read_text())
    return ["…".join(literals) for literals in statements if literals]


def says(message: str, heading: str) -> bool:
    """Whether the pieces of a heading stand in the message in this order, and none of them is part of a longer word."""
    pieces = [piece.strip() for piece in heading.split("…") if piece.strip()]
    words = [rf"(?<![A-Za-z]){re.escape(piece)}(?![A-Za-z])" for piece in pieces]
    return re.search(".*".join(words), message, re.DOTALL) is not None


def test_a_fragment_is_no_message():
    message = "the worker with local rank …… did not come within … s"
    assert says(message, "the worker with local rank … did not come")
    assert not says(message, "did not come … the worker with local rank")
    assert not says(message, "the worker with local rank … did come")
    assert not says(message, "work … local")


@pytest.mark.parametrize("heading", HEADINGS)
def test_the_errors_that_are_explained_exist(heading, messages):
    assert any(says(message, heading) for message in messages)


def test_there_are_headings():
    assert len(HEADINGS) > 30


def documents() -> list[Path]:
    return [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("document", documents(), ids=lambda path: path.name)
def test_links_lead_somewhere(document):
    for target in re.findall(r"\]\(([^)#\s]+)", document.read_text()):
        if not target.startswith(("http://", "https://", "mailto:")):
            assert (document.parent / target).exists(), target


def anchors(document: Path) -> set[str]:
    """What a link to a heading of this page may say behind its #, as GitHub and GitLab make it."""
    text = re.sub(r"^```.*?^```", "", document.read_text(), flags=re.MULTILINE | re.DOTALL)
    titles = re.findall(r"^#+ (.+?)\s*$", text, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


def links_to_headings(document: Path) -> list[tuple[Path, str]]:
    found = re.findall(r"\]\(([^)#\s:]*\.md)?#([^)\s]+)\)", document.read_text())
    return [(document.parent / target if target else document, anchor) for target, anchor in found]


@pytest.mark.parametrize("document", documents(), ids=lambda path: path.name)
def test_links_to_headings_lead_to_one(document):
    assert [(page, anchor) for page, anchor in links_to_headings(document) if anchor not in anchors(page)] == []


def test_there_are_links_to_headings():
    assert sum(len(links_to_headings(document)) for document in documents()) > 50
    assert "no-such-heading" not in anchors(ROOT / "README.md")


def test_the_readme_links_every_page():
    pages = {f"docs/{path.name}" for path in documents()[1:]}
    assert pages - set(re.findall(r"\]\(([^)#\s]+)", (ROOT / "README.md").read_text())) == set()


@pytest.mark.parametrize("document", documents(), ids=lambda path: path.name)
def test_lines_are_short_enough_to_read(document):
    code = False
    for number, line in enumerate(document.read_text().splitlines(), 1):
        code ^= line.lstrip().startswith("```")
        assert code or line.startswith("|") or len(line) <= 140, f"{document.name}:{number}"


def test_the_architecture_names_every_folder():
    text = (ROOT / "docs/architecture.md").read_text()
    folders = {f"core/{path.name}" for path in (ROOT / "core").iterdir() if (path / "CMakeLists.txt").exists()}
    assert {folder for folder in folders if folder not in text} == set()


def commands_in(document: Path) -> set[str]:
    """The programs of the tree that a document names, by their paths."""
    return set(re.findall(r"(?<![\w/.-])((?:scripts|bench)/\w+|tests/\w+/try_\w+)\b(?![/.])", document.read_text()))


def sources() -> list[Path]:
    """The files of the tree that are no documents."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    paths = [ROOT / name for name in listed if not name.endswith((".md", ".svg", ".png"))]
    return [path for path in paths if path.is_file()]


def test_pages_that_a_source_names_exist():
    unknown = []
    for path in sources():
        for page, anchor in re.findall(r"\b(docs/[\w-]+\.md)(?:#([\w-]+))?", path.read_text(errors="replace")):
            is_known = (ROOT / page).is_file() and (not anchor or anchor in anchors(ROOT / page))
            unknown += [] if is_known else [(path.relative_to(ROOT), page, anchor)]
    assert unknown == []


@pytest.mark.parametrize("document", documents(), ids=lambda path: path.name)
def test_programs_that_a_document_names_exist(document):
    assert {command for command in commands_in(document) if not (ROOT / command).exists()} == set()


def test_commands_in_the_readme_help():
    commands = commands_in(ROOT / "README.md")
    assert {"scripts/quickstart", "scripts/test"} <= commands
    for command in commands:
        assert subprocess.run([ROOT / command, "--help"], capture_output=True, timeout=60).returncode == 0, command


def walk() -> list[str]:
    """The files that the walk of a gradient in docs/architecture.md names."""
    text = (ROOT / "docs/architecture.md").read_text()
    section = text.split("## The walk of a gradient", 1)[1].split("\n## ", 1)[0]
    return re.findall(r"^   ((?:plugins|core|daemon)/\S+)", section, re.MULTILINE)


def test_the_walk_of_a_gradient_names_each_file_once():
    assert len(walk()) > 20
    assert len(walk()) == len(set(walk()))


@pytest.mark.parametrize("path", walk())
def test_the_files_of_the_walk_exist(path):
    assert (ROOT / path).is_file()


def rows_of_promises() -> list[str]:
    """The last cell of each row of docs/reliability.md: the tests that hold a promise."""
    rows = re.findall(r"^\|.*\|\s*([^|]+?)\s*\|$", (ROOT / "docs/reliability.md").read_text(), re.MULTILINE)
    return [row for row in rows if row not in ("tests", "---")]


@pytest.fixture(scope="module")
def tests_there_are() -> dict[str, set[str]]:
    """The tests in C++ by their suite, and the tests in Python, and what their folder says, by their file."""
    found: dict[str, set[str]] = {}
    for path in (ROOT / "tests").rglob("*.cc"):
        for suite, test in re.findall(
            r"^(?:\w*TEST\w*|RC_GTEST\w*)\(\s*(\w+),\s*(\w+)", path.read_text(), re.MULTILINE
        ):
            found.setdefault(suite, set()).add(test)
        found.setdefault(path.stem, set())
    for path in (ROOT / "tests").rglob("test_*.py"):
        lines = [line for file in path.parent.glob("*.py") for line in file.read_text().splitlines()]
        found.setdefault(path.stem, set()).update(lines)
    return found


def unknown_names(row: str, there: dict[str, set[str]]) -> list[str]:
    unknown, owner = [], ""
    for name in re.split(r"[;,]\s+", row):
        if name.startswith("`scripts/"):
            unknown += [] if (ROOT / name.split("`")[1].split()[0]).is_file() else [name]
            continue
        begin = re.match(r"(\w*)(?:\.(\w+))?(?:: (.*))?", name)
        is_new = name.startswith("test_") or begin[1][:1].isupper() or begin[1].startswith(("fuzz_", "hostile_"))
        owner = begin[1] if is_new else owner
        words = begin[3] or ("" if is_new or name.startswith(".") else name)
        tests = there.get(owner)
        wanted = [word.replace(" ", "") for word in re.findall(r"\w+", words)]
        is_known = tests is not None and any(all(word in test for word in wanted) for test in tests or {""})
        if begin[2] and tests is not None:
            ends = name[begin.end(2) :]
            is_known = any(test == begin[2] or (ends and test.startswith(begin[2])) for test in tests)
        if not is_known:
            unknown.append(name)
    return unknown


@pytest.mark.parametrize("row", rows_of_promises())
def test_the_tests_that_hold_a_promise_exist(row, tests_there_are):
    assert unknown_names(row, tests_there_are) == []


def test_a_test_that_does_not_exist_is_no_proof(tests_there_are):
    assert len(rows_of_promises()) > 30
    for wrong in (
        "StallWatchdog",
        "Hello.NoSuchTest",
        "test_nowhere",
        "test_faults: a flood of frogs",
        "`scripts/nothing`",
    ):
        assert unknown_names(wrong, tests_there_are) == [wrong]

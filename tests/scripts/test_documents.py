"""The documents say what the sources say."""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
HEADINGS = re.findall(r"^### `(.+)`$", (ROOT / "docs/troubleshooting.md").read_text(), re.MULTILINE)
BETWEEN = 200  # characters of code between two pieces of one message


def sources() -> str:
    """All sources as one text, in which adjoining string literals are joined."""
    text = (ROOT / "bench/compare").read_text()
    for folder in ("core", "daemon", "tools", "plugins", "bench"):
        for suffix in ("*.cc", "*.h", "*.py"):
            text += "".join(path.read_text() for path in sorted((ROOT / folder).rglob(suffix)))
    return re.sub(r'"\s*\n\s*f?"', "", text)


@pytest.fixture(scope="module")
def code() -> str:
    return sources()


@pytest.mark.parametrize("heading", HEADINGS)
def test_the_errors_that_are_explained_exist(heading, code):
    """A heading's pieces stand close together in the code, in its order: one message, not words from anywhere."""
    pieces = [re.escape(piece.strip(" ,;:")) for piece in heading.split("…")]
    assert re.search(f".{{0,{BETWEEN}}}?".join(piece for piece in pieces if piece), code, re.DOTALL), heading


def test_there_are_headings():
    assert len(HEADINGS) > 30


def documents() -> list[Path]:
    return [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("document", documents(), ids=lambda path: path.name)
def test_links_lead_somewhere(document):
    for target in re.findall(r"\]\(([^)#\s]+)", document.read_text()):
        if not target.startswith(("http://", "https://", "mailto:")):
            assert (document.parent / target).exists(), target


def test_the_architecture_names_every_folder():
    text = (ROOT / "docs/architecture.md").read_text()
    folders = {f"core/{path.name}" for path in (ROOT / "core").iterdir() if (path / "CMakeLists.txt").exists()}
    assert {folder for folder in folders if folder not in text} == set()


def test_commands_in_the_readme_exist():
    text = (ROOT / "README.md").read_text()
    for command in set(re.findall(r"^\s*(scripts/\w+|bench/\w+)", text, re.MULTILINE)):
        assert (ROOT / command).is_file(), command
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

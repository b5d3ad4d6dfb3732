"""The class budget: no class above 20 methods or 12 data members.

Methods are the functions that a class declares, overloads one by one, but for constructors, the destructor and
assignment. Data members belong to each object; in Python a class's body annotates them, or its methods assign them to
self. Plain data (a struct without methods, a dataclass) may have any number of members. universal-ctags reads C++.

scripts/class_budget.txt lists the classes that may be larger, each with its reason. A line there that is not needed any
more is an error, too.
"""

from __future__ import annotations

import ast
import re
import subprocess
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

METHODS = 20
MEMBERS = 12
FORMAT = "--_xformat=%{input}|%{name}|%{kind}|%{line}|%{end}|%{scope}|%{signature}|%{C++.properties}"
FIELDS = 8
# ctags overlooks a member with a call in its type and braces behind its name: std::array<int, kNames.size()> counts_{};
OVERLOOKED = re.compile(r"^\s+(?!\s|static\b)[\w:<>., ]*\([^;]*\)[^;()]*>\s+(\w+)\{.*\};")


@dataclass
class Measured:
    """A class and its declarations."""

    path: str
    name: str
    methods: set[str] = field(default_factory=set)
    members: set[str] = field(default_factory=set)

    def over(self) -> str:
        """What exceeds the budget; empty if nothing does."""
        found = []
        if len(self.methods) > METHODS:
            found.append(f"{len(self.methods)} methods (at most {METHODS})")
        if self.methods and len(self.members) > MEMBERS:
            found.append(f"{len(self.members)} data members (at most {MEMBERS})")
        return ", ".join(found)


def is_method(name: str, owner: str) -> bool:
    return not name.startswith("~") and name not in (owner, "operator =")


@dataclass
class Lines:
    """Where a class stands."""

    first: int
    last: int
    measured: Measured


def add_overlooked(root: Path, classes: list[Lines]) -> None:
    """The members that ctags does not see, each to the innermost class around it."""
    by_path: dict[str, list[Lines]] = defaultdict(list)
    for one in classes:
        by_path[one.measured.path].append(one)
    for path, here in by_path.items():
        for number, line in enumerate((root / path).read_text(errors="replace").splitlines(), 1):
            if not (found := OVERLOOKED.match(line)):
                continue
            if around := [one for one in here if one.first < number < one.last]:
                min(around, key=lambda one: one.last - one.first).measured.members.add(found[1])


def cpp_classes(root: Path, files: list[Path]) -> list[Measured]:
    words = ["ctags", "-x", "--language-force=C++", "--kinds-C++=csfpm", "--fields-C++=+{properties}", FORMAT]
    names = [file.relative_to(root).as_posix() for file in files]
    done = subprocess.run([*words, *names], cwd=root, capture_output=True, text=True, check=True)
    found: dict[tuple[str, str], Measured] = {}
    places = []
    rows = [row for line in done.stdout.splitlines() if len(row := line.split("|")) == FIELDS]
    for path, name, kind, first, last, scope, _, _ in rows:
        if kind in ("class", "struct"):
            measured = found[path, f"{scope}::{name}" if scope else name] = Measured(path, name)
            places.append(Lines(int(first), int(last or first), measured))
    add_overlooked(root, places)
    for path, name, kind, _, _, scope, signature, properties in rows:
        owner = found.get((path, scope))  # a method that is defined outside of its class is declared in it as well
        if owner is None or ("static" in properties and kind == "member"):
            continue
        if kind == "member":
            owner.members.add(name)
        elif kind in ("prototype", "function") and is_method(name, owner.name):
            owner.methods.add(name + signature)
    return list(found.values())


def is_dataclass(node: ast.ClassDef) -> bool:
    return any("dataclass" in ast.unparse(decorator) for decorator in node.decorator_list)


def python_class(path: str, node: ast.ClassDef) -> Measured:
    measured = Measured(path, node.name)
    for item in node.body:
        if isinstance(item, (ast.FunctionDef, ast.AsyncFunctionDef)):
            if item.name != "__init__":
                measured.methods.add(item.name)
            for inner in ast.walk(item):
                assigned = isinstance(inner, ast.Attribute) and isinstance(inner.ctx, ast.Store)
                if assigned and isinstance(inner.value, ast.Name) and inner.value.id == "self":
                    measured.members.add(inner.attr)
        elif isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name) and not is_dataclass(node):
            measured.members.add(item.target.id)
    return measured


def python_classes(root: Path, files: list[Path]) -> list[Measured]:
    found = []
    for file in files:
        path = file.relative_to(root).as_posix()
        for node in ast.walk(ast.parse(file.read_text(), path)):
            if isinstance(node, ast.ClassDef):
                found.append(python_class(path, node))
    return found


def read_exceptions(file: Path) -> dict[tuple[str, str], str]:
    """(path, class) -> the reason, of lines `PATH CLASS REASON...`."""
    exceptions = {}
    for line in file.read_text().splitlines() if file.exists() else []:
        words = line.split(maxsplit=2)
        if words and not words[0].startswith("#"):
            exceptions[(words[0], words[1] if len(words) > 1 else "")] = words[2] if len(words) > 2 else ""
    return exceptions


def check(root: Path, cpp: list[Path], python: list[Path], exceptions: dict[tuple[str, str], str]) -> list[str]:
    """A line for each class over the budget, and for each exception without a reason or without its class."""
    classes = (cpp_classes(root, cpp) if cpp else []) + python_classes(root, python)
    over: dict[tuple[str, str], list[str]] = defaultdict(list)
    for measured in classes:
        if measured.over():
            over[(measured.path, measured.name)].append(measured.over())
    lines = [
        f"{path}: class {name}: {what[0]}" for (path, name), what in over.items() if (path, name) not in exceptions
    ]
    for (path, name), reason in exceptions.items():
        if not reason:
            lines.append(f"scripts/class_budget.txt: {path} {name}: give the reason")
        if (path, name) not in over:
            lines.append(f"scripts/class_budget.txt: {path} {name} is within the budget: remove the line")
    return sorted(lines)

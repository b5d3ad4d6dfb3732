"""Groups the sources of a target into batches that compile as one file.

    batches.py ROOT SIZE SOURCE...     (paths relative to ROOT)

Prints one batch a line, its sources separated by semicolons. Two sources that both define a name in an anonymous
namespace, or one that hides there a name that the other defines for all, never share a batch: as one file they would
not compile. universal-ctags finds the names. Without it every source is a batch of its own.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

# ctags takes these macros for functions. GoogleTest and RapidCheck make unique names of their arguments.
MACROS = ("TEST", "RC_", "INSTANTIATE_", "BENCHMARK", "TYPED_", "MATCHER")
# What ctags does not see: the name that a MATCHER defines, and a constant with braces in its value.
UNSEEN = re.compile(r"^(?:MATCHER(?:_P\d*)?\(|constexpr [^={(\n]*?\b(?=k[A-Z]\w* *[=\[{]))(\w+)", re.MULTILINE)


def ctags(root: str, sources: list[str]) -> list[list[str]]:
    """Rows of file, name, kind and scope for what the sources define outside of classes and functions."""
    words = [
        "ctags",
        "-x",
        "--language-force=C++",
        "--_xformat=%{input}|%{name}|%{kind}|%{scopeKind}|%{scope}",
        *sources,
    ]
    done = subprocess.run(words, cwd=root, capture_output=True, text=True, check=True)
    rows = [line.split("|") for line in done.stdout.splitlines()]
    return [row for row in rows if len(row) == 5 and row[3] in ("namespace", "") and row[2] != "namespace"]


def names(root: str, sources: list[str]) -> tuple[dict[str, set[str]], dict[str, set[str]]]:
    """The names of each source that no other source may use, and all of its names."""
    private, every = defaultdict(set), defaultdict(set)
    for source, name, kind, _, scope in ctags(root, sources):
        if name.startswith(MACROS):
            continue
        every[source].add(name)
        if "__anon" in scope or kind == "macro":
            private[source].add(name)
    for source in sources:
        private[source].update(UNSEEN.findall(Path(root, source).read_text(errors="replace")))
        every[source] |= private[source]
    return private, every


def batches(root: str, size: int, sources: list[str]) -> list[list[str]]:
    private, every = names(root, sources)
    found: list[list[str]] = []
    for source in sources:
        for batch in found:
            clash = any(private[source] & every[other] or every[source] & private[other] for other in batch)
            if len(batch) < size and not clash:
                batch.append(source)
                break
        else:
            found.append([source])
    return found


def main() -> None:
    root, size, sources = sys.argv[1], int(sys.argv[2]), sys.argv[3:]
    alone = len(sources) < 2 or not shutil.which("ctags")
    for batch in [[source] for source in sources] if alone else batches(root, size, sources):
        print(";".join(batch))


if __name__ == "__main__":
    main()

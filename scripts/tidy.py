"""clang-tidy within a time budget; scripts/lint calls it.

    check = Tidy(root, build, base=None, seconds=180)
    found = check.run()              # a line for each finding; check.left_out names files that the time did not reach

Most of clang-tidy's time goes into the system's headers. So sources with the same flags are checked in batches, as one
file that includes them (cmake/batches.py says which ones may share a batch). A batch that does not compile is checked
source by source.

What passed once is not checked again while the file, the headers of ours that it includes and .clang-tidy stay the
same: .cache/tidy holds a stamp for each. Of the rest, the files that changed since `base` come first, then the files
that include a changed header, then all others, beginning at another one for each commit. `base` is the newest commit
that passed as a whole in this tree, or else 20 commits ago: the files of a landing are checked before all others.
"""

from __future__ import annotations

import hashlib
import json
import re
import shlex
import subprocess
import sys
import time
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

BATCHES = Path(__file__).resolve().parent.parent / "cmake/batches.py"
JOBS = 2
BATCH = 12  # sources
FOLDERS = ("core", "daemon", "tools")
FINDING = re.compile(r" (error|warning): ")


def flags_of(entry: dict) -> tuple[str, ...]:
    """The compiler's flags of one source, without its name and that of its object."""
    words = shlex.split(entry["command"])[1:]
    if "-o" in words:
        at = words.index("-o")
        del words[at : at + 2]
    return tuple(word for word in words if word not in ("-c", entry["file"]))


class Tidy:
    def __init__(self, root: Path, build: Path, base: str | None, seconds: float) -> None:
        self.root = root
        self.cache = root / ".cache/tidy"
        self.flags: dict[Path, tuple[str, ...]] = {}
        for entry in json.loads((build / "compile_commands.json").read_text()):
            for file in self.compiled(Path(entry["file"])):
                ours = file.is_relative_to(root) and self.name(file).split("/")[0] in FOLDERS
                if ours and file.is_file():  # the build may be older than the tree
                    self.flags.setdefault(file, flags_of(entry))
        self.base = base or self.newest_passed() or self.some_commits_ago(20)
        self.deadline = time.monotonic() + seconds
        self.contents: dict[Path, bytes] = {}
        self.checked = 0
        self.left_out: list[str] = []

    def git(self, *words: str) -> list[str]:
        return subprocess.run(["git", *words], cwd=self.root, capture_output=True, text=True).stdout.splitlines()

    def name(self, file: Path) -> str:
        return file.relative_to(self.root).as_posix()

    def compiled(self, file: Path) -> list[Path]:
        """The sources that the compiler takes as this file: several, if it is a batch (cmake/DeftModule.cmake)."""
        if not re.search(r"_batch_\d+\.cc$", file.name) or not file.is_file():
            return [file]
        return [self.root / name for name in re.findall(r'#include "([^"]+)"', file.read_text())]

    # ---- which files, and in which order

    def newest_passed(self) -> str | None:
        """The commit that passed as a whole, if it is one of this branch."""
        note = self.cache / "passed"
        passed = note.read_text() if note.is_file() else ""
        return passed if passed and passed in self.git("rev-list", "HEAD") else None

    def some_commits_ago(self, count: int) -> str:
        return self.git("rev-list", f"--max-count={count + 1}", "HEAD")[-1]

    def sources(self) -> list[list[Path]]:
        """All files in three groups: changed, with a changed header, and the others from this commit's place on."""
        ours = sorted(self.flags)
        touched = {self.root / name for name in self.git("diff", "--name-only", self.base)}
        changed = [file for file in ours if file in touched]
        affected = [file for file in ours if file not in touched and touched & self.closure(file)]
        others = sorted(set(ours) - set(changed) - set(affected))
        commit = "".join(self.git("rev-parse", "HEAD")) or "0"
        first = int(commit, 16) % max(len(others), 1)
        return [changed, affected, others[first:] + others[:first]]

    def batches(self, files: list[Path]) -> list[list[Path]]:
        """Files of the same flags together, in about the same order."""
        alike = defaultdict(list)
        for file in files:
            alike[self.flags[file]].append(self.name(file))
        lines = [line for names in alike.values() for line in self.grouped(names)]
        return [[self.root / name for name in line.split(";")] for line in lines]

    def grouped(self, names: list[str]) -> list[str]:
        words = [sys.executable, str(BATCHES), str(self.root), str(BATCH), *names]
        return subprocess.run(words, capture_output=True, text=True, check=True).stdout.splitlines()

    # ---- files that passed before

    def read(self, file: Path) -> bytes:
        if file not in self.contents:
            self.contents[file] = file.read_bytes() if file.is_file() else b""
        return self.contents[file]

    def closure(self, file: Path) -> set[Path]:
        """The file and all headers of ours that it includes."""
        seen, waiting = {file}, [file]
        while waiting:
            for match in re.finditer(rb'#include "([^"]+)"', self.read(waiting.pop())):
                header = self.root / match[1].decode()
                if header not in seen:
                    seen.add(header)
                    waiting.append(header)
        return seen

    def stamp(self, file: Path) -> Path:
        digest = hashlib.sha256(self.read(self.root / ".clang-tidy"))
        for path in sorted(self.closure(file)):
            digest.update(path.as_posix().removeprefix(self.root.as_posix()).encode() + self.read(path))
        return self.cache / digest.hexdigest()

    # ---- the checks

    def check(self, batch: list[Path]) -> list[str]:
        if time.monotonic() > self.deadline:
            self.left_out += [self.name(file) for file in batch]
            return []
        result = subprocess.run(self.command(batch), cwd=self.root, capture_output=True, text=True)
        if "[clang-diagnostic-error]" in result.stdout and len(batch) > 1:
            return [line for file in batch for line in self.check([file])]
        self.checked += len(batch)
        found = [line.replace(f"{self.root}/", "") for line in result.stdout.splitlines() if FINDING.search(line)]
        if result.returncode and not found:
            found = [f"{self.name(batch[0])}: {result.stderr.strip()[-300:]}"]
        places = {line.split(":")[0] for line in found}
        if places <= {self.name(file) for file in batch}:  # else a header has it, and so all of the batch
            for file in batch:
                if self.name(file) not in places:
                    self.stamp(file).touch()
        return found

    def command(self, batch: list[Path]) -> list[str]:
        file = batch[0]
        if len(batch) > 1:  # the analyzer knows batches by this name: it checks the functions of included files
            names = "".join(f'#include "{source}"  // NOLINT\n' for source in batch)
            file = self.cache / f"UnifiedSource-{hashlib.sha256(names.encode()).hexdigest()[:16]}.cc"
            file.write_text(names)
        return ["clang-tidy-14", "--quiet", str(file), "--", *self.flags[batch[0]]]

    def run(self) -> list[str]:
        """Gives a line for each finding of clang-tidy."""
        self.cache.mkdir(parents=True, exist_ok=True)
        unknown = [[file for file in group if not self.stamp(file).exists()] for group in self.sources()]
        work = [batch for group in unknown for batch in self.batches(group)]
        with ThreadPoolExecutor(JOBS) as pool:
            found = sorted({line for lines in pool.map(self.check, work) for line in lines})
        known = len(self.flags) - sum(map(len, unknown))
        print(f"tidy: {len(self.flags)} files: {self.checked} checked, {known} known, {len(self.left_out)} left out")
        if not found and not self.left_out and not self.git("status", "--porcelain"):
            (self.cache / "passed").write_text("".join(self.git("rev-parse", "HEAD")))
        return found

"""clang-tidy within a time budget; scripts/lint calls it.

What passed once is not run again while the file, the headers of ours that it includes and .clang-tidy stay the same:
.cache/tidy holds a stamp for each. The rest is checked in two groups. First the files that the last commit, or what is
not committed, touched, directly or by a header. Then all others, beginning at another one for each commit, so that what
the budget leaves out is not always the same. What is left out is named.
"""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

JOBS = 2
FOLDERS = ("core", "daemon", "tools")


class Tidy:
    def __init__(self, root: Path, build: Path, base: str, seconds: float) -> None:
        self.root = root
        self.build = build
        self.base = base
        self.deadline = time.monotonic() + seconds
        self.contents: dict[Path, bytes] = {}
        self.checked = 0
        self.left_out: list[str] = []

    def git(self, *words: str) -> list[str]:
        return subprocess.run(["git", *words], cwd=self.root, capture_output=True, text=True).stdout.splitlines()

    def name(self, file: Path) -> str:
        return file.relative_to(self.root).as_posix()

    def sources(self) -> list[Path]:
        """All files to check: the changed ones, then the others from this commit's place on."""
        database = json.loads((self.build / "compile_commands.json").read_text())
        files = {Path(entry["file"]) for entry in database}
        ours = sorted(f for f in files if f.is_relative_to(self.root) and self.name(f).split("/")[0] in FOLDERS)
        touched = {self.root / name for name in self.git("diff", "--name-only", self.base)}
        changed = [file for file in ours if touched & self.closure(file)]
        others = [file for file in ours if file not in set(changed)]
        commit = "".join(self.git("rev-parse", "HEAD")) or "0"
        first = int(commit, 16) % max(len(others), 1)
        return changed + others[first:] + others[:first]

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
        return self.root / ".cache/tidy" / digest.hexdigest()

    def check(self, file: Path) -> list[str]:
        stamp = self.stamp(file)
        if stamp.exists():
            return []
        if time.monotonic() > self.deadline:
            self.left_out.append(self.name(file))
            return []
        words = ["clang-tidy-14", "--quiet", "-p", str(self.build), str(file)]
        result = subprocess.run(words, cwd=self.root, capture_output=True, text=True)
        self.checked += 1
        if result.returncode == 0:
            stamp.parent.mkdir(parents=True, exist_ok=True)
            stamp.touch()
            return []
        found = [line for line in result.stdout.splitlines() if " error: " in line or " warning: " in line]
        root = f"{self.root}/"
        return [line.replace(root, "") for line in found] or [f"{file}: {result.stderr.strip()[-300:]}"]

    def run(self) -> list[str]:
        """What clang-tidy found, one line each."""
        sources = self.sources()
        with ThreadPoolExecutor(JOBS) as pool:
            results = list(pool.map(self.check, sources))
        known = len(sources) - self.checked - len(self.left_out)
        print(f"tidy: {len(sources)} files: {self.checked} checked, {known} known, {len(self.left_out)} left out")
        return sorted({line for lines in results for line in lines})

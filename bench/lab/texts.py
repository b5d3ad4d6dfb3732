"""A text to learn language from: the cookies of Debian's fortune packages, or the files of any folder.

    text = texts.load()                     # train and held-out part, as strings
    codes, size = texts.characters(text.train)
    codes, size = texts.words(text.train, vocabulary)

One cookie in sixteen is held out. A language model sees the rest as one long row of codes.
"""

from __future__ import annotations

import collections
import functools
import os
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lab.data import MissingData

FOLDERS = ("/usr/share/games/fortunes", "/usr/share/fortune", "~/.cache/fortunes")
LEAST_BYTES = 1_000_000  # fortunes-min alone has a tenth of that
HELD_OUT = 16
CHARACTERS = "\n" + "".join(map(chr, range(32, 127)))
UNKNOWN = 0
_WORD = re.compile(r"[a-z]+(?:'[a-z]+)?|[0-9]+|[^\sa-z0-9]")


@dataclass(frozen=True)
class Text:
    train: str
    held_out: str


def find(folder: str | None = None) -> Path:
    """The folder that holds the text; the error names every place that was looked at and where to get it."""
    places = [folder] if folder else FOLDERS
    for place in places:
        path = Path(os.path.expanduser(place))
        if sum(file.stat().st_size for file in _files(path)) >= LEAST_BYTES:
            return path
    raise MissingData(
        f"there is no text of at least {LEAST_BYTES / 1e6:g} MB in {' or '.join(map(str, places))}: on Debian and "
        "Ubuntu install the package fortunes, else give a folder with text files by --data"
    )


def _files(folder: Path) -> list[Path]:
    """The text files, without fortune's indices and the second names of the same files."""
    if not folder.is_dir():
        return []
    return sorted(
        path
        for path in folder.iterdir()
        if path.is_file() and not path.is_symlink() and path.suffix != ".dat" and not path.name.startswith(".")
    )


@functools.cache
def load(folder: str | None = None) -> Text:
    cookies: list[str] = []
    for path in _files(find(folder)):
        text = path.read_text(encoding="utf-8", errors="replace").replace("\r", "").replace("\t", "    ")
        cookies += [cookie.strip("\n") + "\n" for cookie in re.split(r"\n%\n|\n\n\n+", text) if cookie.strip()]
    parts = [[c for i, c in enumerate(cookies) if (i % HELD_OUT == 0) == out] for out in (False, True)]
    return Text(*("\n".join(part) for part in parts))


def characters(text: str) -> np.ndarray:
    """A code for each character; a character that is not printable ASCII becomes a space."""
    table = np.full(128, CHARACTERS.index(" "), np.uint8)
    for code, character in enumerate(CHARACTERS):
        table[ord(character)] = code
    raw = np.frombuffer(text.encode("ascii", "replace"), np.uint8)
    return table[raw]


def split_words(text: str) -> list[str]:
    """Words without case, numbers and single signs."""
    return _WORD.findall(text.lower())


def vocabulary(words: list[str], size: int) -> dict[str, int]:
    """The most frequent words, by rank; code 0 is for all others."""
    counted = sorted(collections.Counter(words).items(), key=lambda pair: (-pair[1], pair[0]))
    return {word: rank + 1 for rank, (word, _) in enumerate(counted[: size - 1])}


def encode(words: list[str], codes: dict[str, int]) -> np.ndarray:
    return np.fromiter((codes.get(word, UNKNOWN) for word in words), np.int64, len(words))

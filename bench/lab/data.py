"""Fashion-MNIST as numpy arrays, from Debian's package or any folder with the four original files."""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import numpy as np

FOLDERS = (
    "/usr/share/datasets/fashion-mnist",
    "~/.cache/fashion-mnist",
    "~/.cache/deft/fashion-mnist",
    "data/FashionMNIST/raw",
)
SOURCE = "https://github.com/zalandoresearch/fashion-mnist/tree/master/data/fashion"


class MissingData(RuntimeError):
    pass


def find(folder: str | None = None) -> Path:
    """The folder that holds the files; the error names every place that was looked at and where to get them."""
    places = [folder] if folder else FOLDERS
    for place in places:
        path = Path(os.path.expanduser(place))
        if all(_file(path, f"{part}-{kind}") for part in ("train", "t10k") for kind in ("images-idx3", "labels-idx1")):
            return path
    raise MissingData(
        f"Fashion-MNIST is not in {' or '.join(map(str, places))}: on Debian and Ubuntu install the package "
        f"dataset-fashion-mnist (non-free), else put the four *-ubyte.gz files of {SOURCE} into a folder and give it "
        "with --data"
    )


def _file(folder: Path, stem: str) -> Path | None:
    for name in (f"{stem}-ubyte.gz", f"{stem}-ubyte"):
        if (folder / name).is_file():
            return folder / name
    return None


def _read(path: Path, header_bytes: int) -> np.ndarray:
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
        return np.frombuffer(file.read(), np.uint8, offset=header_bytes)


def load(part: str, folder: str | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Images (n x 28 x 28, bytes) and labels of `train` or `t10k`."""
    place = find(folder)
    images = _read(_file(place, f"{part}-images-idx3"), 16).reshape(-1, 28, 28)
    return images, _read(_file(place, f"{part}-labels-idx1"), 8)


class Shards:
    """The same order of samples for every scheme; each rank takes its slice of every global batch."""

    def __init__(self, samples: int, batch: int, rank: int, world: int, seed: int):
        self.steps_per_epoch = samples // (batch * world)
        if self.steps_per_epoch == 0:
            raise ValueError(f"{world} workers x batch {batch} is more than the {samples} samples there are")
        self._samples, self._batch, self._rank, self._world, self._seed = samples, batch, rank, world, seed
        self._epoch = -1
        self._order = np.empty(0, np.int64)

    @classmethod
    def of(cls, setting: dict, samples: int) -> Shards:
        """Of the worker that has this setting (lab/trainers.py)."""
        return cls(samples, setting["batch"], setting["rank"], setting["world"], setting["seed"])

    def indices(self, step: int) -> np.ndarray:
        epoch, position = divmod(step, self.steps_per_epoch)
        if epoch != self._epoch:
            self._epoch, self._order = epoch, np.random.default_rng([self._seed, epoch]).permutation(self._samples)
        start = (position * self._world + self._rank) * self._batch
        return self._order[start : start + self._batch]

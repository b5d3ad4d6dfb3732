"""The data set of each model, with the same samples in the same order for every scheme.

    dataset = open_dataset("images", folder)     # or characters, words; read once, before the workers are forked
    inputs, targets = dataset.batch(indices)     # of the training part: tensors
    for inputs, targets in dataset.held_out(rank, world): ...   # this rank's share of what training never sees
    loss(model(inputs), targets)

A target is one class for each row of the model's output: an image's label, or what follows each place of a text.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator

import numpy as np
import torch
from torch.nn import functional

from lab import data, texts

WORDS = 16384  # the vocabulary of `words`
PREDICTED_WORDS = 1024  # the most frequent, which are told apart as targets; all others are code 0
CONTEXT = {"characters": 64, "words": 32}  # codes a sample
_EVALUATED_AT_ONCE = 250
_MOST_HELD_OUT = {"images": 10_000, "characters": 2_000, "words": 2_000}  # evaluation has to take seconds, not minutes


class Images:
    """Fashion-MNIST, normalised."""

    def __init__(self, folder: str | None):
        self._train, self._test = _tensors("train", folder), _tensors("t10k", folder)
        self.samples = len(self._train[1])

    def batch(self, index: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
        images, labels = self._train
        chosen = torch.from_numpy(index)
        return _normalized(images[chosen]), labels[chosen]

    def held_out(self, rank: int, world: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        images, labels = (part[rank::world] for part in self._test)
        for chunk, truth in zip(images.split(_EVALUATED_AT_ONCE), labels.split(_EVALUATED_AT_ONCE), strict=True):
            yield _normalized(chunk), truth


class Codes:
    """A text as a row of codes, cut into samples of equal length that do not overlap. Targets are codes < `classes`."""

    def __init__(self, train: np.ndarray, held_out: np.ndarray, length: int, classes: int, most_held_out: int):
        self._train, self._held_out = (torch.from_numpy(part.astype(np.int64)) for part in (train, held_out))
        self._length, self._classes = length, classes
        self.samples = (len(train) - 1) // length
        self._most_held_out = min(most_held_out, (len(held_out) - 1) // length)

    def batch(self, index: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
        return self._cut(self._train, torch.from_numpy(index))

    def held_out(self, rank: int, world: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        for chunk in torch.arange(self._most_held_out)[rank::world].split(_EVALUATED_AT_ONCE):
            yield self._cut(self._held_out, chunk)

    def _cut(self, codes: torch.Tensor, index: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Samples and what follows each of their codes."""
        places = index.unsqueeze(1) * self._length + torch.arange(self._length)
        following = codes[places + 1]
        return codes[places], following.masked_fill(following >= self._classes, texts.UNKNOWN)


def _characters(folder: str | None) -> Codes:
    text = texts.load(folder)
    parts = (texts.characters(part) for part in (text.train, text.held_out))
    return Codes(*parts, CONTEXT["characters"], len(texts.CHARACTERS), _MOST_HELD_OUT["characters"])


def _words(folder: str | None) -> Codes:
    text = texts.load(folder)
    train, held_out = texts.split_words(text.train), texts.split_words(text.held_out)
    codes = texts.vocabulary(train, WORDS)
    parts = (texts.encode(part, codes) for part in (train, held_out))
    return Codes(*parts, CONTEXT["words"], PREDICTED_WORDS, _MOST_HELD_OUT["words"])


KINDS = {"images": Images, "characters": _characters, "words": _words}


@functools.cache
def open_dataset(kind: str, folder: str | None) -> Images | Codes:
    """Called before the forks, it reads the files once for all workers."""
    return KINDS[kind](folder)


def loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """The mean over all targets."""
    return functional.cross_entropy(outputs.flatten(0, -2), targets.flatten())


def _tensors(part: str, folder: str | None) -> tuple[torch.Tensor, torch.Tensor]:
    images, labels = data.load(part, folder)
    return torch.from_numpy(images.copy()), torch.from_numpy(labels.astype("int64"))


def _normalized(images: torch.Tensor) -> torch.Tensor:
    return images.unsqueeze(1).float().div_(255).sub_(0.286).div_(0.353)

"""The lab's models; lab/catalogue.py lists what each learns from and how.

Images (n x 1 x 28 x 28): cnn, vgg, resnet, resnet50, mlp. Characters and words (n x length codes): gpt, words.
None has running statistics or dropout: what a worker computes follows from its parameters and its samples alone.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from lab.datasets import CONTEXT, PREDICTED_WORDS, WORDS
from lab.texts import CHARACTERS


def _convolutions(inputs: int, *widths: int) -> list[nn.Module]:
    layers: list[nn.Module] = []
    for width in widths:
        layers += [nn.Conv2d(inputs, width, 3, padding=1), nn.ReLU()]
        inputs = width
    return layers


def cnn() -> nn.Module:
    """4.38 M parameters, nearly all of them in the two large layers whose gradients backward produces first."""
    return nn.Sequential(
        *_convolutions(1, 64, 64), nn.MaxPool2d(2),
        *_convolutions(64, 64, 64), nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(3136, 1024), nn.ReLU(),
        nn.Linear(1024, 1024), nn.ReLU(),
        nn.Linear(1024, 10),
    )  # fmt: skip


def vgg() -> nn.Module:
    """2.53 M parameters: three stages of convolutions that grow wider, and VGG's three dense layers with most bytes."""
    return nn.Sequential(
        *_convolutions(1, 32, 32), nn.MaxPool2d(2),
        *_convolutions(32, 64, 64), nn.MaxPool2d(2),
        *_convolutions(64, 128, 128), nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(1152, 1024), nn.ReLU(),
        nn.Linear(1024, 1024), nn.ReLU(),
        nn.Linear(1024, 10),
    )  # fmt: skip


class _Residual(nn.Module):
    """Two convolutions and a shortcut. Groups are normalised, not batches: no running statistics that differ."""

    def __init__(self, inputs: int, width: int, stride: int):
        super().__init__()
        self.first = nn.Conv2d(inputs, width, 3, stride, 1, bias=False)
        self.first_norm = nn.GroupNorm(8, width)
        self.second = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.second_norm = nn.GroupNorm(8, width)
        self.shortcut = nn.Identity() if stride == 1 else nn.Conv2d(inputs, width, 1, stride, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = functional.relu(self.first_norm(self.first(x)))
        return functional.relu(self.second_norm(self.second(y)) + self.shortcut(x))


def resnet() -> nn.Module:
    """0.70 M parameters in 43 tensors: many small gradients, spread over the whole of backward."""
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1, bias=False), nn.GroupNorm(8, 32), nn.ReLU(),
        _Residual(32, 32, 1), _Residual(32, 32, 1),
        _Residual(32, 64, 2), _Residual(64, 64, 1),
        _Residual(64, 128, 2), _Residual(128, 128, 1),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 10),
    )  # fmt: skip


class _Bottleneck(nn.Module):
    """ResNet-50's block, with groups normalised."""

    def __init__(self, inputs: int, width: int, stride: int):
        super().__init__()
        self.narrow = nn.Conv2d(inputs, width, 1, bias=False)
        self.narrow_norm = nn.GroupNorm(8, width)
        self.middle = nn.Conv2d(width, width, 3, stride, 1, bias=False)
        self.middle_norm = nn.GroupNorm(8, width)
        self.widen = nn.Conv2d(width, 4 * width, 1, bias=False)
        self.widen_norm = nn.GroupNorm(8, 4 * width)
        self.shortcut = nn.Identity()
        if inputs != 4 * width:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, 4 * width, 1, stride, bias=False), nn.GroupNorm(8, 4 * width)
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = functional.relu(self.narrow_norm(self.narrow(x)))
        y = functional.relu(self.middle_norm(self.middle(y)))
        return functional.relu(self.widen_norm(self.widen(y)) + self.shortcut(x))


def resnet50() -> nn.Module:
    """ResNet-50: 23.5 M parameters in 161 tensors, as published but for one channel in and 10 classes out."""
    stages = []
    inputs = 64
    for width, blocks, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for block in range(blocks):
            stages.append(_Bottleneck(inputs, width, stride if block == 0 else 1))
            inputs = 4 * width
    return nn.Sequential(
        nn.Conv2d(1, 64, 7, 2, 3, bias=False), nn.GroupNorm(8, 64), nn.ReLU(), nn.MaxPool2d(3, 2, 1),
        *stages,
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, 10),
    )  # fmt: skip


def mlp() -> nn.Module:
    """Small and quick: for tests of the lab itself."""
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 64), nn.ReLU(), nn.Linear(64, 10))


class _Block(nn.Module):
    """A layer of a transformer that sees no later codes."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self._heads = heads
        self.norm = nn.LayerNorm(width)
        self.attention = nn.Linear(width, 3 * width)
        self.mixed = nn.Linear(width, width)
        self.dense_norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        count, length, width = x.shape
        parts = self.attention(self.norm(x)).view(count, length, 3, self._heads, width // self._heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.mixed(seen.transpose(1, 2).reshape(count, length, width))
        return x + self.down(functional.gelu(self.up(self.dense_norm(x))))


class _Language(nn.Module):
    """Codes to scores of what follows each: an embedding, narrowed to the width of the blocks, and a dense head."""

    def __init__(self, codes: int, embedded: int, width: int, blocks: int, heads: int, length: int, classes: int):
        super().__init__()
        self.embedding = nn.Embedding(codes, embedded)
        self.narrow = nn.Linear(embedded, width) if embedded != width else nn.Identity()
        self.position = nn.Parameter(0.1 * torch.randn(length, width))
        self.blocks = nn.Sequential(*(_Block(width, heads) for _ in range(blocks)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes)

    def forward(self, codes: torch.Tensor) -> torch.Tensor:
        x = self.narrow(self.embedding(codes)) + self.position
        return self.head(self.norm(self.blocks(x)))


def gpt() -> nn.Module:
    """0.83 M parameters in equal blocks: predicts the next character."""
    return _Language(len(CHARACTERS), 128, 128, 4, 4, CONTEXT["characters"], len(CHARACTERS))


def words() -> nn.Module:
    """3.7 M parameters, 3.1 M (12.6 MB) of them in the embedding: its gradient comes last and is needed first."""
    return _Language(WORDS, 192, 96, 4, 4, CONTEXT["words"], PREDICTED_WORDS)


MAKERS = {"cnn": cnn, "vgg": vgg, "resnet": resnet, "resnet50": resnet50, "gpt": gpt, "words": words, "mlp": mlp}


def make_optimizer(name: str, model: nn.Module, learning_rate: float) -> torch.optim.Optimizer:
    if name == "adam":
        return torch.optim.Adam(model.parameters(), lr=learning_rate)
    return torch.optim.SGD(model.parameters(), lr=learning_rate, momentum=0.9)

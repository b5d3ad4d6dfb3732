"""The lab's models. All take Fashion-MNIST images (n x 1 x 28 x 28)."""

from __future__ import annotations

from torch import nn


def cnn() -> nn.Module:
    """4.38 M parameters, nearly all of them in the two large layers whose gradients backward produces first."""

    def convolution(inputs: int) -> list[nn.Module]:
        return [nn.Conv2d(inputs, 64, 3, padding=1), nn.ReLU()]

    return nn.Sequential(
        *convolution(1), *convolution(64), nn.MaxPool2d(2),
        *convolution(64), *convolution(64), nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(3136, 1024), nn.ReLU(),
        nn.Linear(1024, 1024), nn.ReLU(),
        nn.Linear(1024, 10),
    )  # fmt: skip


def mlp() -> nn.Module:
    """Small and quick: for tests of the lab itself."""
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 64), nn.ReLU(), nn.Linear(64, 10))


MODELS = {"cnn": cnn, "mlp": mlp}

#!/usr/bin/env python3
"""Trains a small convolutional network on Fashion-MNIST with Deft.

    deftrun -np 2 python examples/torch/fashion_mnist.py --epochs 1
    torchrun --nproc-per-node 2 examples/torch/fashion_mnist.py       (needs a running daemon)
    mpirun -np 2 python examples/torch/fashion_mnist.py               (needs a running daemon)

The lines marked with (1) to (5) are all that Deft needs; without them this is an ordinary training script.
"""

import argparse
import gzip
import time
from pathlib import Path

import deft.torch as deft  # (1)
import numpy as np
import torch
from torch import nn
from torch.nn import functional

# Where Debian's package dataset-fashion-mnist puts the files, and where you may put them.
FOLDERS = (Path("/usr/share/datasets/fashion-mnist"), Path.home() / ".cache/fashion-mnist")
SOURCE = "https://github.com/zalandoresearch/fashion-mnist/tree/master/data/fashion"


def load(folder: Path, part: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Images and labels of `train` or `t10k`, from the original files."""

    def read(kind: str, header: int) -> np.ndarray:
        path = folder / f"{part}-{kind}-ubyte.gz"
        if not path.exists():
            raise SystemExit(
                f"{path} is missing: install dataset-fashion-mnist, or give the files of {SOURCE} by --data"
            )
        with gzip.open(path) as file:
            return np.frombuffer(bytearray(file.read()), np.uint8, offset=header)

    images = torch.from_numpy(read("images-idx3", 16)).reshape(-1, 1, 28, 28)
    return images, torch.from_numpy(read("labels-idx1", 8)).long()


def prepared(images: torch.Tensor) -> torch.Tensor:
    return (images.float() / 255 - 0.286) / 0.353


def network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 64, 3, padding=1), nn.ReLU(),
        nn.Conv2d(64, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(64, 64, 3, padding=1), nn.ReLU(),
        nn.Conv2d(64, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(3136, 1024), nn.ReLU(),
        nn.Linear(1024, 1024), nn.ReLU(),
        nn.Linear(1024, 10),
    )  # fmt: skip


def accuracy(model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> float:
    """Each worker tests its share; the average over all workers is what counts."""
    own = slice(deft.rank(), None, deft.size())
    with torch.no_grad():
        right = [
            (model(prepared(x)).argmax(1) == y).float() for x, y in zip(images[own].split(250), labels[own].split(250))
        ]
    return deft.allreduce(torch.cat(right).mean(), name="accuracy").item()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--steps", type=int, help="stop an epoch after so many steps")
    parser.add_argument("--batch", type=int, default=128, help="samples a worker and step")
    parser.add_argument("--learning-rate", type=float, default=0.05)
    parser.add_argument("--data", type=Path, default=next(filter(Path.exists, FOLDERS), FOLDERS[0]))
    options = parser.parse_args()

    deft.init()  # (2)
    torch.manual_seed(1)
    images, labels = load(options.data, "train")
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=options.learning_rate, momentum=0.9)

    deft.broadcast_parameters(model.state_dict(), root_rank=0)  # (3)
    optimizer = deft.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())  # (4)

    for epoch in range(options.epochs):
        order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(epoch))
        mine = order[deft.rank() :: deft.size()].split(options.batch)  # (5) each worker takes its own samples
        mine = [batch for batch in mine if len(batch) == options.batch][: options.steps]
        start = time.perf_counter()
        for step, batch in enumerate(mine, 1):
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(prepared(images[batch])), labels[batch])
            loss.backward()
            optimizer.step()
            if deft.rank() == 0 and (step % 20 == 0 or step == len(mine)):
                pace = 1e3 * (time.perf_counter() - start) / step
                print(f"epoch {epoch + 1}, step {step}/{len(mine)}: loss {loss.item():.3f}, {pace:.0f} ms a step")

    reached = accuracy(model, *load(options.data, "t10k"))
    if deft.rank() == 0:
        print(f"test accuracy {100 * reached:.2f} %")
    deft.shutdown()


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Trains a small network on Fashion-MNIST with Deft and gluon of MXNet 1.9.1.

    deftrun -np 2 python examples/mxnet/fashion_mnist.py --epochs 1
    deftrun -np 2 python examples/mxnet/fashion_mnist.py --kvstore
    mpirun -np 2 python examples/mxnet/fashion_mnist.py               (needs a running daemon)

The lines marked with (1) to (5) are all that Deft needs; without them this is an ordinary training script.
"""

import argparse
import gzip
from pathlib import Path

import deft.mxnet as deft  # (1)
import mxnet as mx
import numpy as np
from mxnet.gluon import nn

# Where Debian's package dataset-fashion-mnist puts the files, and where you may put them.
FOLDERS = (Path("/usr/share/datasets/fashion-mnist"), Path.home() / ".cache/fashion-mnist")
SOURCE = "https://github.com/zalandoresearch/fashion-mnist/tree/master/data/fashion"


def load(folder: Path, part: str) -> mx.gluon.data.ArrayDataset:
    """Images and labels of `train` or `t10k`, from the original files."""

    def read(kind: str, header: int) -> np.ndarray:
        path = folder / f"{part}-{kind}-ubyte.gz"
        if not path.exists():
            raise SystemExit(
                f"{path} is missing: install dataset-fashion-mnist, or give the files of {SOURCE} by --data"
            )
        with gzip.open(path) as file:
            return np.frombuffer(file.read(), np.uint8, offset=header)

    images = read("images-idx3", 16).reshape(-1, 1, 28, 28).astype(np.float32)
    own = slice(deft.rank(), None, deft.size())  # (5) each worker takes its own samples
    return mx.gluon.data.ArrayDataset((images[own] / 255 - 0.286) / 0.353, read("labels-idx1", 8)[own].astype(np.int32))


def network() -> nn.HybridSequential:
    net = nn.HybridSequential()
    net.add(
        nn.Conv2D(32, 3, padding=1, activation="relu"),
        nn.MaxPool2D(),
        nn.Conv2D(64, 3, padding=1, activation="relu"),
        nn.MaxPool2D(),
        nn.Flatten(),
        nn.Dense(512, activation="relu"),
        nn.Dense(10),
    )
    net.initialize(mx.init.Xavier())
    net.hybridize(static_alloc=True)
    return net


def make_step(net, options):
    """step(samples of this worker), which applies the gradients."""
    settings = {"learning_rate": options.learning_rate, "momentum": 0.9}
    if not options.kvstore:
        return deft.DistributedTrainer(net.collect_params(), "sgd", settings).step  # (4)
    trainer = mx.gluon.Trainer(net.collect_params(), "sgd", settings, kvstore="deft")  # (4)
    return lambda samples: trainer.step(samples * deft.size())


def accuracy(net, dataset) -> float:
    """Each worker tests its share; the average over all workers is what counts."""
    right = sum(
        (net(images).argmax(axis=1).astype("int32") == labels).sum().asscalar()
        for images, labels in mx.gluon.data.DataLoader(dataset, 250)
    )
    return deft.allreduce(mx.nd.array([right / len(dataset)]), name="accuracy").asscalar()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--steps", type=int, help="stop an epoch after so many steps")
    parser.add_argument("--batch", type=int, default=128, help="samples a worker and step")
    parser.add_argument("--learning-rate", type=float, default=0.02)
    parser.add_argument("--kvstore", action="store_true", help="gluon's Trainer with the store `deft`")
    parser.add_argument("--data", type=Path, default=next(filter(Path.exists, FOLDERS), FOLDERS[0]))
    options = parser.parse_args()

    deft.init()  # (2)
    mx.random.seed(1)
    net, loss_of = network(), mx.gluon.loss.SoftmaxCrossEntropyLoss()
    deft.broadcast_parameters(net.collect_params(), root_rank=0)  # (3)
    step = make_step(net, options)
    batches = mx.gluon.data.DataLoader(load(options.data, "train"), options.batch, shuffle=True, last_batch="discard")
    for _ in range(options.epochs):
        for number, (images, labels) in enumerate(batches):
            if number == options.steps:
                break
            with mx.autograd.record():
                loss = loss_of(net(images), labels)
            loss.backward()
            step(options.batch)
    reached = accuracy(net, load(options.data, "t10k"))
    if deft.rank() == 0:
        print(f"loss {loss.mean().asscalar():.3f}")
        print(f"test accuracy {100 * reached:.2f} %")
    deft.shutdown()


if __name__ == "__main__":
    main()

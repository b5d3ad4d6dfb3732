#!/usr/bin/env python3
"""Trains a small network on Fashion-MNIST with Deft, by model.fit of Keras or by a loop of one's own.

    deftrun -np 2 python examples/tensorflow/fashion_mnist.py --epochs 1
    deftrun -np 2 python examples/tensorflow/fashion_mnist.py --loop
    mpirun -np 2 python examples/tensorflow/fashion_mnist.py          (needs a running daemon)

The lines marked with (1) to (5) are all that Deft needs; without them this is an ordinary training script.
"""

import argparse
import gzip
from pathlib import Path

import deft.tensorflow.keras as deft  # (1)
import keras
import numpy as np
import tensorflow as tf
from deft.tensorflow import DistributedGradientTape

# Where Debian's package dataset-fashion-mnist puts the files, and where you may put them.
FOLDERS = (Path("/usr/share/datasets/fashion-mnist"), Path.home() / ".cache/fashion-mnist")
SOURCE = "https://github.com/zalandoresearch/fashion-mnist/tree/master/data/fashion"


def load(folder: Path, part: str) -> tuple[np.ndarray, np.ndarray]:
    """Images and labels of `train` or `t10k`, from the original files."""

    def read(kind: str, header: int) -> np.ndarray:
        path = folder / f"{part}-{kind}-ubyte.gz"
        if not path.exists():
            raise SystemExit(
                f"{path} is missing: install dataset-fashion-mnist, or give the files of {SOURCE} by --data"
            )
        with gzip.open(path) as file:
            return np.frombuffer(file.read(), np.uint8, offset=header)

    images = read("images-idx3", 16).reshape(-1, 28, 28, 1).astype(np.float32)
    return (images / 255 - 0.286) / 0.353, read("labels-idx1", 8).astype(np.int64)


def network() -> keras.Model:
    layers = keras.layers
    return keras.Sequential([
        layers.Input((28, 28, 1)),
        layers.Conv2D(32, 3, padding="same", activation="relu"), layers.MaxPool2D(),
        layers.Conv2D(64, 3, padding="same", activation="relu"), layers.MaxPool2D(),
        layers.Flatten(),
        layers.Dense(512, activation="relu"),
        layers.Dense(10),
    ])  # fmt: skip


def train_by_fit(model, optimizer, loss, batches, options) -> None:
    model.compile(deft.DistributedOptimizer(optimizer), loss, jit_compile=False)  # (4)
    callbacks = [
        deft.callbacks.BroadcastGlobalVariablesCallback(0),  # (3)
        deft.callbacks.MetricAverageCallback(),
    ]
    history = model.fit(
        batches, epochs=options.epochs, steps_per_epoch=options.steps, callbacks=callbacks, verbose=0
    ).history
    if deft.rank() == 0:
        print(f"loss {history['loss'][-1]:.3f}")


def train_by_loop(model, optimizer, loss, batches, options) -> None:
    deft.broadcast_variables(model.variables, root_rank=0)  # (3)

    @tf.function
    def step(images, labels):
        with tf.GradientTape() as tape:
            value = loss(labels, model(images, training=True))
        tape = DistributedGradientTape(tape)  # (4)
        gradients = tape.gradient(value, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        return value

    for _ in range(options.epochs):
        for images, labels in batches.take(options.steps or -1):
            value = step(images, labels)
    if deft.rank() == 0:
        print(f"loss {float(value):.3f}")


def accuracy(model, images, labels) -> float:
    """Each worker tests its share; the average over all workers is what counts."""
    own = slice(deft.rank(), None, deft.size())
    right = model.predict(images[own], batch_size=250, verbose=0).argmax(1) == labels[own]
    return float(deft.allreduce(tf.constant(right.mean()), name="accuracy"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--steps", type=int, help="stop an epoch after so many steps")
    parser.add_argument("--batch", type=int, default=128, help="samples a worker and step")
    parser.add_argument("--learning-rate", type=float, default=0.02)
    parser.add_argument("--loop", action="store_true", help="a loop with a gradient tape instead of model.fit")
    parser.add_argument("--data", type=Path, default=next(filter(Path.exists, FOLDERS), FOLDERS[0]))
    options = parser.parse_args()

    deft.init()  # (2)
    keras.utils.set_random_seed(1)
    images, labels = load(options.data, "train")
    model = network()
    optimizer = keras.optimizers.SGD(options.learning_rate, momentum=0.9)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    mine = slice(deft.rank(), None, deft.size())  # (5) each worker takes its own samples
    batches = tf.data.Dataset.from_tensor_slices((images[mine], labels[mine])).shuffle(10_000, seed=1)
    batches = batches.batch(options.batch, drop_remainder=True)
    (train_by_loop if options.loop else train_by_fit)(model, optimizer, loss, batches, options)

    reached = accuracy(model, *load(options.data, "t10k"))
    if deft.rank() == 0:
        print(f"test accuracy {100 * reached:.2f} %")
    deft.shutdown()


if __name__ == "__main__":
    main()

"""How TensorFlow trains in the lab: alone, through MultiWorkerMirroredStrategy (`own`), or through deft.tensorflow."""

from __future__ import annotations

import sys

import numpy as np
import tensorflow as tf

from lab.frameworks import LAYERS

MOMENTUM = 0.9


def _initial(setting: dict) -> list[np.ndarray]:
    """The same on every rank: uniform within 1 / sqrt(inputs), as PyTorch's layers."""
    rng, values, side, inputs = np.random.default_rng(setting["seed"]), [], 28, 1
    flat = False
    for kind, *width in LAYERS[setting["model"]]:
        if kind == "pool":
            side //= 2
            continue
        if kind == "dense" and not flat:
            inputs, flat = inputs * side * side, True
        shape = (3, 3, inputs, width[0]) if kind == "conv" else (inputs, width[0])
        bound = 1 / np.sqrt(np.prod(shape[:-1]))
        values += [rng.uniform(-bound, bound, shape), rng.uniform(-bound, bound, width[0])]
        inputs = width[0]
    return [value.astype(np.float32) for value in values]


class TensorFlowTrainer:
    def __init__(self, setting: dict):
        tf.config.threading.set_intra_op_parallelism_threads(1)
        tf.config.threading.set_inter_op_parallelism_threads(2)
        self._layers, self._kind, self.updates = LAYERS[setting["model"]], setting["kind"], 0
        self._strategy = self._deft = None
        if self._kind == "own":
            ring = tf.distribute.experimental.CommunicationImplementation.RING
            options = tf.distribute.experimental.CommunicationOptions(implementation=ring)
            self._strategy = tf.distribute.MultiWorkerMirroredStrategy(communication_options=options)
        elif self._kind == "deft":
            sys.path.insert(0, setting["packages"])
            import deft.tensorflow

            self._deft = deft.tensorflow
            self._deft.init()
        self._variables = [tf.Variable(value) for value in _initial(setting)]
        self._momenta = [tf.Variable(tf.zeros_like(variable)) for variable in self._variables]
        self._rate, self._world = tf.constant(setting["learning_rate"]), setting["world"]
        self._compiled = tf.function(self._distributed_step if self._strategy else self._step)
        self._forward = tf.function(self._scores)

    def _scores(self, x):
        variables, flat = iter(self._variables), False
        for place, (kind, *_) in enumerate(self._layers):
            if kind == "pool":
                x = tf.nn.max_pool2d(x, 2, 2, "VALID")
                continue
            if kind == "dense" and not flat:
                x, flat = tf.reshape(x, (tf.shape(x)[0], -1)), True
            weight, bias = next(variables), next(variables)
            x = (tf.nn.conv2d(x, weight, 1, "SAME") if kind == "conv" else tf.matmul(x, weight)) + bias
            if place + 1 < len(self._layers):
                x = tf.nn.relu(x)
        return x

    def _step(self, x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(y, self._scores(x)))
        if self._deft:
            tape = self._deft.DistributedGradientTape(tape)
        gradients = tape.gradient(loss, self._variables)
        if self._strategy:
            context = tf.distribute.get_replica_context()
            gradients = context.all_reduce(tf.distribute.ReduceOp.MEAN, gradients)
        for variable, momentum, gradient in zip(self._variables, self._momenta, gradients, strict=True):
            tf.raw_ops.ResourceApplyMomentum(
                var=variable.handle, accum=momentum.handle, lr=self._rate, grad=gradient, momentum=MOMENTUM
            )
        return loss

    def _distributed_step(self, x, y):
        return self._strategy.run(self._step, (x, y))

    def train_step(self, images: np.ndarray, labels: np.ndarray) -> float:
        loss = self._compiled(tf.constant(images[..., None]), tf.constant(labels))
        self.updates += 1
        return float(loss)

    def settle(self) -> None:
        """A step is over when its call returns."""

    def scores(self, images: np.ndarray) -> np.ndarray:
        return self._forward(tf.constant(images[..., None])).numpy()

    def parameters(self) -> list[np.ndarray]:
        return [variable.numpy() for variable in self._variables]

    def close(self) -> None:
        if self._deft:
            self._deft.shutdown()

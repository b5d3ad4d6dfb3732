"""How MXNet trains in the lab: alone (compute), through dist_sync's parameter servers (own), through deft.mxnet."""

from __future__ import annotations

import sys

import mxnet as mx
import numpy as np
from mxnet.gluon import nn

from lab.frameworks import LAYERS


def _network(setting: dict) -> nn.HybridSequential:
    """The same on every rank."""
    mx.random.seed(setting["seed"])
    np.random.seed(setting["seed"])  # initializers take from both
    net, layers = nn.HybridSequential(), LAYERS[setting["model"]]
    for place, (kind, *width) in enumerate(layers):
        relu = "relu" if place + 1 < len(layers) else None
        if kind == "pool":
            net.add(nn.MaxPool2D())
        elif kind == "conv":
            net.add(nn.Conv2D(width[0], 3, padding=1, activation=relu))
        else:
            net.add(nn.Dense(width[0], activation=relu))
    net.initialize(mx.init.Xavier())
    net(mx.nd.zeros((1, 1, 28, 28)))  # finds the shapes
    net.hybridize(static_alloc=True)
    return net


class MXNetTrainer:
    def __init__(self, setting: dict):
        self._net, self._kind, self.updates = _network(setting), setting["kind"], 0
        self._loss = mx.gluon.loss.SoftmaxCrossEntropyLoss()
        self._scale, self._deft = 1, None
        params = self._net.collect_params()
        sgd = {"learning_rate": setting["learning_rate"], "momentum": 0.9}
        if self._kind == "deft":
            sys.path.insert(0, setting["packages"])
            import deft.mxnet

            self._deft = deft.mxnet
            self._deft.init()
            self._trainer = self._deft.DistributedTrainer(params, "sgd", sgd)
        elif self._kind == "own":
            self._scale = setting["world"]
            self._trainer = mx.gluon.Trainer(params, "sgd", sgd, kvstore="dist_sync")
        else:
            self._trainer = mx.gluon.Trainer(params, "sgd", sgd, kvstore=None)

    def train_step(self, images: np.ndarray, labels: np.ndarray) -> float:
        """It waits for the loss, not for the update, as MXNet's loops do."""
        x, y = mx.nd.array(images[:, None]), mx.nd.array(labels)
        with mx.autograd.record():
            loss = self._loss(self._net(x), y)
        loss.backward()
        self._trainer.step(len(images) * self._scale)
        self.updates += 1
        return float(loss.mean().asscalar())

    def settle(self) -> None:
        mx.nd.waitall()

    def scores(self, images: np.ndarray) -> np.ndarray:
        return self._net(mx.nd.array(images[:, None])).asnumpy()

    def parameters(self) -> list[np.ndarray]:
        return [param.data().asnumpy() for param in self._net.collect_params().values()]

    def close(self) -> None:
        if self._deft:
            self._deft.shutdown()

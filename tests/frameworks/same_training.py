"""The same training in one framework, under many settings, as one of two workers; and what it must give.

    python same_training.py SETTING.json    # {framework, folder, library, cases: [{name, codec, fused, options}, ...]}

A case is a session: init() with the options, some steps, shutdown(). Weights and losses of all cases go to the file
FOLDER/FRAMEWORK.RANK.npz. Rank 0 also trains without Deft: `whole`, on the whole batch, and for each case what one
process gives that adds the gradients of both ranks as the case's codec does, and applies them when the job did.
"""

import json
import os
import sys
import time
from pathlib import Path

import numpy as np
from numpy_codec_sums import CodecSums, stable_hash

SHAPES = {"w1": (96, 192), "b1": (192,), "w2": (192, 96), "b2": (96,), "w3": (96, 1)}  # the two matrices are encoded
STEPS, ROWS, RANKS = 6, 16, 2
RATE, MOMENTUM = 0.05, 0.9
RANDOM = ("randk", "qsgd", "terngrad", "signsgd")  # codecs that draw random numbers, by the names of job and gradients
WAIT_SECONDS = 240  # for the other jobs


def first_weights():
    rng = np.random.default_rng(11)
    return [(rng.standard_normal(shape) / np.sqrt(shape[0])).astype(np.float32) for shape in SHAPES.values()]


def batches():
    rng = np.random.default_rng(5)
    for _ in range(STEPS):
        x = rng.standard_normal((ROWS, 96)).astype(np.float32)
        yield x, np.sin(x.sum(axis=1, keepdims=True)).astype(np.float32)


class TorchTraining:
    """step(x, y): forward, backward, update; gives the loss. Without Deft gradients() and apply() are its halves."""

    group = "optimizer.0"  # what the plugin calls the gradients
    before = 0.5  # what it multiplies gradients by before the sum

    def __init__(self):
        import torch

        torch.set_num_threads(1)

        class Network(torch.nn.Module):
            def __init__(self):
                super().__init__()
                for name, weights in zip(SHAPES, first_weights()):
                    self.register_parameter(name, torch.nn.Parameter(torch.from_numpy(weights)))

            def forward(self, x):
                hidden = torch.tanh(torch.tanh(x @ self.w1 + self.b1) @ self.w2 + self.b2)
                return hidden @ self.w3

        self.tensor_of, self.network = torch.from_numpy, Network()
        self.optimizer = torch.optim.SGD(self.network.parameters(), RATE, MOMENTUM)

    def distribute(self, hvd):
        self.optimizer = hvd.DistributedOptimizer(self.optimizer, self.network.named_parameters())

    def _backward(self, x, y):
        self.optimizer.zero_grad()
        loss = ((self.network(self.tensor_of(x)) - self.tensor_of(y)) ** 2).mean()
        loss.backward()
        return float(loss.detach())

    def step(self, x, y):
        loss = self._backward(x, y)
        self.optimizer.step()
        return loss

    def gradients(self, x, y):
        loss = self._backward(x, y)
        return loss, [param.grad.numpy().copy() for param in self.network.parameters()]

    def apply(self, gradients):
        for param, gradient in zip(self.network.parameters(), gradients):
            param.grad = self.tensor_of(gradient)
        self.optimizer.step()

    def dates(self):
        """Of each step (generation, its last step, the step before whose forward it is applied)."""
        self.optimizer.flush()
        of_steps = map(self.optimizer._deft.buffer.arena.group.generations_of, range(STEPS))
        found = [{(one.number, one.last_step, one.apply_step) for one in of_step} for of_step in of_steps]
        assert all(len(dates) == 1 for dates in found), "the tensors have different dates"
        return [dates.pop() for dates in found]

    def weights(self):
        return [param.detach().numpy() for param in self.network.parameters()]


class Undelayed:
    def dates(self):
        return [(step, step, step + 1) for step in range(STEPS)]


class TensorFlowTraining(Undelayed):
    group = "tensorflow.0"
    before = 0.5

    def __init__(self):
        import keras
        import tensorflow as tf

        self.tf = tf
        dense = [keras.layers.Dense(192, "tanh"), keras.layers.Dense(96, "tanh"), keras.layers.Dense(1, use_bias=False)]
        self.model = keras.Sequential([keras.layers.Input((96,)), *dense])
        self.model.set_weights(first_weights())
        self.optimizer = keras.optimizers.SGD(RATE, MOMENTUM)

    def distribute(self, hvd):
        self.optimizer = hvd.DistributedOptimizer(self.optimizer)

    def _backward(self, x, y):
        with self.tf.GradientTape() as tape:
            loss = self.tf.reduce_mean((self.model(x) - y) ** 2)
        return float(loss), tape.gradient(loss, self.model.trainable_variables)

    def step(self, x, y):
        loss, gradients = self._backward(x, y)
        self.apply(gradients)
        return loss

    def gradients(self, x, y):
        loss, gradients = self._backward(x, y)
        return loss, [gradient.numpy() for gradient in gradients]

    def apply(self, gradients):
        gradients = map(self.tf.convert_to_tensor, gradients)
        self.optimizer.apply_gradients(zip(gradients, self.model.trainable_variables))

    def weights(self):
        return self.model.get_weights()


class MXNetTraining(Undelayed):
    group = "mxnet.0"
    before = 1.0
    sgd = {"learning_rate": RATE, "momentum": MOMENTUM}

    def __init__(self):
        import mxnet as mx

        self.mx = mx
        self.params = [mx.gluon.Parameter(name, shape=shape) for name, shape in SHAPES.items()]
        for param, weights in zip(self.params, first_weights()):
            param.initialize()
            param.set_data(mx.nd.array(weights))
        self.trainer = mx.gluon.Trainer(self.params, "sgd", dict(self.sgd), kvstore=None)

    def distribute(self, hvd):
        self.trainer = hvd.DistributedTrainer(self.params, "sgd", dict(self.sgd))

    def _backward(self, x, y):
        mx = self.mx
        w1, b1, w2, b2, w3 = [param.data() for param in self.params]
        with mx.autograd.record():
            hidden = mx.nd.tanh(mx.nd.dot(mx.nd.tanh(mx.nd.dot(mx.nd.array(x), w1) + b1), w2) + b2)
            loss = mx.nd.square(mx.nd.dot(hidden, w3) - mx.nd.array(y)).mean()
        loss.backward()
        return loss

    def step(self, x, y):
        loss = self._backward(x, y)
        self.trainer.step(1)
        return float(loss.asscalar())

    def gradients(self, x, y):
        loss = self._backward(x, y)
        return float(loss.asscalar()), [param.grad().asnumpy() for param in self.params]

    def apply(self, gradients):
        for param, gradient in zip(self.params, gradients):
            param.grad()[:] = gradient
        self.trainer.step(1)

    def weights(self):
        return [param.data().asnumpy() for param in self.params]


TRAININGS = {"torch": TorchTraining, "tensorflow": TensorFlowTraining, "mxnet": MXNetTraining}


def share_of(rank, *arrays):
    return [np.ascontiguousarray(array[rank::RANKS]) for array in arrays]


def one_process(training):
    """On the whole batch."""
    losses = []
    for x, y in batches():
        loss, gradients = training.gradients(x, y)
        training.apply(gradients)
        losses.append(loss)
    return losses


def follow(training, sums, dates):
    """What the job must give whose gradients had these dates, as TorchTraining.dates() gives them."""
    under_way, totals, merged = [], None, 0
    for step, (x, y) in enumerate(batches()):
        while under_way and under_way[0][0] <= step:
            training.apply(under_way.pop(0)[1])
        own = [training.gradients(*share_of(rank, x, y))[1] for rank in range(RANKS)]
        own = [[gradient * np.float32(training.before) for gradient in of_rank] for of_rank in own]
        if totals is not None:
            own = [[total + gradient for total, gradient in zip(*pair)] for pair in zip(totals, own)]
        totals, merged = own, merged + 1
        number, last, applied = dates[step]
        if step == last:
            factor = np.float32(1 / (training.before * RANKS * merged))
            average = [total * factor for total in sums.add(totals, number)]
            under_way.append((applied, average))
            totals, merged = None, 0
    for _, average in under_way:
        training.apply(average)


def flat(weights):
    return np.concatenate([np.asarray(one).ravel() for one in weights])


class Worker:
    def __init__(self, setting):
        self.framework, self.folder = setting["framework"], Path(setting["folder"])
        self.cases, self.library = setting["cases"], setting["library"]
        self.make = TRAININGS[self.framework]
        self.hvd = __import__(f"deft.{self.framework}", fromlist=["init"])
        self.rank = int(os.environ["DEFT_RANK"])
        self.results, self.dates = {}, {}

    def wait_for_all_jobs(self):
        """All jobs have a session now."""
        (self.folder / f"{self.framework}.{self.rank}.up").touch()
        began = time.monotonic()
        while not (self.folder / "go").exists():
            if time.monotonic() - began > WAIT_SECONDS:
                raise TimeoutError("the other jobs did not begin")
            time.sleep(0.02)

    def job_of(self, case):
        return f"{self.framework}.{case['name']}"

    def train(self, case, is_first):
        self.hvd.init(job=self.job_of(case), compression=case["codec"], **case["options"])
        if is_first:
            self.wait_for_all_jobs()
        training = self.make()
        training.distribute(self.hvd)
        losses = [training.step(*share_of(self.rank, x, y)) for x, y in batches()]
        self.dates[case["name"]] = training.dates()
        self.results[case["name"]] = flat(training.weights())
        self.results[case["name"] + ".losses"] = np.array(losses)
        self.hvd.shutdown()

    def make_references(self):
        training = self.make()
        self.results["whole.losses"] = np.array(one_process(training))
        self.results["whole"] = flat(training.weights())
        known = {}  # cases that must give the same
        for case in self.cases:
            dates, key = self.dates[case["name"]], stable_hash(f"{self.job_of(case)}/{self.make.group}")
            same = (case["codec"], case["fused"], str(dates), key if case["codec"].startswith(RANDOM) else None)
            if same not in known:
                known[same] = self.make()
                sums = CodecSums(self.library, case["codec"], list(SHAPES.values()), key, case["fused"])
                follow(known[same], sums, dates)
            self.results[case["name"] + ".expected"] = flat(known[same].weights())

    def run(self):
        for number, case in enumerate(self.cases):
            self.train(case, number == 0)
        if self.rank == 0:
            self.make_references()
        np.savez(self.folder / f"{self.framework}.{self.rank}.npz", **self.results)
        (self.folder / f"{self.framework}.{self.rank}.dates").write_text(json.dumps(self.dates))


if __name__ == "__main__":
    Worker(json.loads(Path(sys.argv[1]).read_text())).run()

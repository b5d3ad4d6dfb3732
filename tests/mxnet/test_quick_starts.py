"""The quick start of docs/mxnet.md trains, word for word."""

import numpy as np
import pytest
from document_code import run_code
from mxnet_jobs import small_net, weights_of

PAGE = ("docs/mxnet.md", "Quick start")


def what_a_reader_brings(rank):
    """Other weights and other samples on each rank."""
    import mxnet as mx

    net, chance = small_net(seed=3 + rank), np.random.default_rng(rank)
    samples = [tuple(mx.nd.array(chance.normal(size=(8, columns))) for columns in (6, 1)) for _ in range(3)]
    return {"net": net, "own_samples": samples, "batch_size": 8, "loss_of": mx.gluon.loss.L2Loss()}


def train_with_a_distributed_trainer():
    import deft.mxnet as hvd

    return weights_of(run_code(*PAGE, what_a_reader_brings(hvd.rank()))["net"])


def train_with_the_store():
    """The second block shows a trainer, and its step."""
    import deft.mxnet as hvd
    import mxnet as mx

    brought = what_a_reader_brings(hvd.rank())
    x, y = brought["own_samples"][0]
    with mx.autograd.record():
        loss = brought["loss_of"](brought["net"](x), y)
    loss.backward()
    return weights_of(run_code(*PAGE, {**brought, "mx": mx, "hvd": hvd}, block=1)["net"])


@pytest.mark.parametrize("train", [train_with_a_distributed_trainer, train_with_the_store])
def test_the_script_trains(start, train):
    first, second = start().run(train)
    assert all(np.array_equal(one, other) for one, other in zip(first, second)), "the ranks differ"
    began = weights_of(small_net(seed=3))  # of rank 0
    assert not any(np.array_equal(one, then) for one, then in zip(first, began))

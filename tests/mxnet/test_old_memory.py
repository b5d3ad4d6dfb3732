"""Who still writes to the memory that a gradient had before it moved into the arena: compiled and older graphs."""

import os
import subprocess
import sys

import numpy as np
import pytest
from launching import PACKAGE
from mxnet_jobs import assert_ways_agree, backward, make_step, small_net, weights_of
from training_checks import assert_close, batches, own_share

STEPS = 6
BUILT_BEFORE = """
import mxnet as mx
net = mx.gluon.nn.Dense(1, in_units=1)
net.initialize()
net.hybridize(static_alloc=True, static_shape=True)
net(mx.nd.ones((1, 1)))
import deft.mxnet
from deft.mxnet.old_memory import _addressed
assert set(_addressed) == set(net.collect_params().values())
"""


def static_shapes():
    """Their operations keep the addresses of gradients: those of the first pass, or what the network became later."""

    def make_net():
        net = small_net()
        net.hybridize(static_alloc=True, static_shape=True)
        return net

    assert_ways_agree(make_net, lambda: batches(STEPS))


def static_shapes_between_two_trainers():
    """The network is compiled while its gradients lie in the first trainer's arena."""
    net, plain = small_net(), small_net()
    for part in range(2):
        step, expected = make_step("trainer", net), make_step("", plain)
        for x, y in batches(STEPS):
            backward(plain, x, y)
            expected(len(x))
            x, y = own_share(x, y)
            backward(net, x, y)
            step(len(x))
        if part == 0:
            net.hybridize(static_alloc=True, static_shape=True)
            backward(net, *own_share(*next(batches(1))))
    assert_close(weights_of(net), weights_of(plain))


def graphs_before_the_first_step(used):
    """Two losses of one recorded forward, with a step after each."""
    import mxnet as mx

    net = small_net()
    step = make_step("trainer", net)
    with mx.autograd.record():
        output = net(mx.nd.ones((2, 6)))
        losses = [output.sum(), (2 * output).sum()]
    losses[0].backward(retain_graph=used)
    step(2)
    if used:
        losses[1].backward()
        with pytest.raises(ValueError, match=r"a gradient of parameter \w+ is lost.* Record graphs after that step"):
            step(2, ignore_stale_grad=True)
    else:
        for x, y in batches(2):
            backward(net, x, y)
            step(2)


def other_devices():
    import deft.mxnet as hvd
    import mxnet as mx

    device = mx.cpu(1)
    net = mx.gluon.nn.Dense(1, in_units=2)
    net.initialize(ctx=device)
    trainer = hvd.DistributedTrainer(net.collect_params(), "sgd")
    for _ in range(2):
        with mx.autograd.record():
            loss = net(mx.nd.ones((1, 2), ctx=device) * (1 + hvd.rank())).sum()
        loss.backward()
        trainer.step(1)
        assert net.weight.grad(device).context == device
        assert net.weight.grad(device).asnumpy().tolist() == [[3.0, 3.0]]


def broadcast_twice_before_the_shapes_are_known():
    import deft.mxnet as hvd
    import mxnet as mx

    net = mx.gluon.nn.Dense(2)
    net.initialize(mx.init.Constant(hvd.rank()))
    for _ in range(2):
        hvd.broadcast_parameters(net.collect_params(), root_rank=1)
    np.testing.assert_array_equal(net(mx.nd.ones((1, 3))).asnumpy(), [[3.0, 3.0]])
    net.collect_params().reset_ctx(mx.cpu(1))
    assert net.weight.data(mx.cpu(1)).asnumpy().tolist() == [[1.0] * 3] * 2


def everything():
    static_shapes()
    static_shapes_between_two_trainers()
    graphs_before_the_first_step(used=False)
    other_devices()
    broadcast_twice_before_the_shapes_are_known()
    graphs_before_the_first_step(used=True)
    return True


def test_who_writes_to_the_old_memory_of_gradients(start):
    assert all(start(policy="fifo").run(everything))


def test_networks_that_were_compiled_before_the_import():
    environment = os.environ | {"PYTHONPATH": str(PACKAGE)}
    subprocess.run([sys.executable, "-c", BUILT_BEFORE], env=environment, check=True, timeout=120)

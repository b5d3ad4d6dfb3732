"""Jobs of MXNet workers on real daemons, a small network, and the ways to train it."""

import numpy as np
from launching import Cluster
from training_checks import assert_close, assert_same_everywhere, own_share

SGD = {"learning_rate": 0.05, "momentum": 0.9}
WAYS = ("trainer", "kvstore", "optimizer")


def need_nothing(_function):
    """MXNet's environment variables say it all."""


class MXNetCluster(Cluster):
    package = "deft.mxnet"
    script_modules = ("numpy",)
    prepare = staticmethod(need_nothing)


def small_net(hybrid=False, seed=3, in_units=6):
    """Equal on every rank for equal seeds. in_units=0: shapes are known after the first forward."""
    import mxnet as mx
    from mxnet.gluon import nn

    mx.random.seed(seed)
    np.random.seed(seed)  # initializers take from both
    net = nn.HybridSequential()
    for units in (24, 24, 24, 1):
        net.add(nn.Dense(units, activation="tanh" if units > 1 else None, in_units=in_units))
        in_units = units if in_units else 0
    net.initialize(mx.init.Xavier())
    if hybrid:
        net.hybridize(static_alloc=True)
    return net


def weights_of(net):
    return [param.data().asnumpy() for param in net.collect_params().values()]


def make_step(way, net, sgd=None, **options):
    """step(rows) applies the gradients of a backward over `rows` samples of this rank; way "" is one process."""
    import deft.mxnet as hvd
    import mxnet as mx

    params, sgd = net.collect_params(), dict(SGD if sgd is None else sgd)
    if way == "trainer":
        return hvd.DistributedTrainer(params, "sgd", sgd, **options).step
    if way == "kvstore":
        trainer = mx.gluon.Trainer(params, "sgd", sgd, kvstore="deft", **options)
        return lambda rows: trainer.step(rows * hvd.size())
    if way == "optimizer":
        optimizer = hvd.DistributedOptimizer(mx.optimizer.create("sgd", **sgd), **options)
        return mx.gluon.Trainer(params, optimizer, kvstore=None).step
    return mx.gluon.Trainer(params, "sgd", sgd, kvstore=None).step


def backward(net, x, y):
    """Of the summed loss, which it gives."""
    import mxnet as mx

    arrays = mx.np if mx.util.is_np_array() else mx.nd
    with mx.autograd.record():
        loss = arrays.square(net(arrays.array(x)) - arrays.array(y)).sum()
    loss.backward()
    return loss


def assert_ways_agree(make_net, make_batches, before_step=lambda number: None):
    """Each way of training gives all ranks the weights of one process on the whole batches.

    before_step(number) is called in the distributed trainings."""
    results = {}
    for way in ("", *WAYS):
        net = make_net()
        step = make_step(way, net)
        for number, (x, y) in enumerate(make_batches()):
            if way:
                before_step(number)
                x, y = own_share(x, y)
            backward(net, x, y)
            step(len(x))
        results[way] = weights_of(net)
        if way:
            assert_same_everywhere(results[way])
            assert_close(results[way], results[""])

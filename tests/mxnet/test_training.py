"""Every policy trains as one process on the whole batch does, and with the same bits on every rank."""

import gc
import itertools
import pickle

import numpy as np
import pytest
from mxnet_jobs import SGD, WAYS, assert_ways_agree, backward, make_step, small_net, weights_of
from offered import CODECS, policies
from training_checks import assert_close, assert_same_everywhere, batches, large_gradient, own_share, sum_of_halves

STEPS = 10
NETWORKS = (False, True)  # imperative, hybridized


def train(way, hybrid=False, rows=8, in_units=6, **options):
    """The weights after some steps. way "": one process on the whole batch."""
    import deft.mxnet as hvd

    seed = 3 + (hvd.rank() if way else 0)  # rank 0's weights count
    net = small_net(hybrid, seed, in_units)
    if way:
        hvd.broadcast_parameters(net.collect_params(), root_rank=0)
    step = make_step(way, net, **options)
    for x, y in batches(STEPS, rows):
        x, y = own_share(x, y) if way else (x, y)
        backward(net, x, y)
        step(len(x))
    return weights_of(net)


def in_new_session(name, **options):
    import deft.mxnet as hvd

    hvd.shutdown()
    hvd.init(job=name, **options)


def train_in_all_ways(policies):
    expected = train("")
    for policy in policies:
        in_new_session(f"policy.{policy}", policy=policy, compression="none")
        for way, hybrid in itertools.product(WAYS, NETWORKS):
            weights = train(way, hybrid)
            assert_same_everywhere(weights)
            assert_close(weights, expected)
    return True


def test_every_policy_trains_as_one_process_on_the_whole_batch(start):
    assert all(start(policy="fifo").run(train_in_all_ways, policies()))


def train_large(way, named="", **options):
    """Two matrices that are large enough to be encoded. `named`: a codec for the store."""
    import deft.mxnet as hvd
    import mxnet as mx

    params = [mx.gluon.Parameter("large", shape=(64, 128)), mx.gluon.Parameter("other", shape=(64, 128))]
    for param in params:
        param.initialize(mx.init.Zero())
    rate = {"learning_rate": 1.0}
    if way == "trainer":
        trainer = hvd.DistributedTrainer(params, "sgd", rate, **options)
    elif way == "optimizer":
        optimizer = hvd.DistributedOptimizer(mx.optimizer.create("sgd", **rate), **options)
        trainer = mx.gluon.Trainer(params, optimizer, kvstore=None)
    else:
        encoded = {"compression_params": {"type": named}} if named else {}
        trainer = mx.gluon.Trainer(params, "sgd", rate, kvstore="deft", **encoded)
    rng = np.random.default_rng(hvd.rank())
    for _ in range(3):
        with mx.autograd.record():
            loss = sum((param.data() * mx.nd.array(rng.standard_normal((64, 128)))).sum() for param in params)
        loss.backward()
        trainer.step(hvd.size() if way == "kvstore" else 1)
    weights = [param.data().asnumpy() for param in params]
    assert_same_everywhere(weights)
    return weights


def differences(weights, exact):
    return [float(np.abs(one - other).max()) for one, other in zip(weights, exact)]


def codecs_of_the_job(codecs):
    exact = train_large("trainer")
    for codec in codecs:
        in_new_session(f"codec.{codec}".replace("/", "-"), compression=codec)
        for way in WAYS:
            assert min(differences(train_large(way), exact)) > 1e-4, f"{codec}, {way}: nothing was encoded"
    return True


def codecs_of_parameters():
    """A function chooses int2 for one of two matrices. The store has one codec for all."""
    import deft.mxnet as hvd

    def choose(name, _gradient):
        return hvd.Compression.int2 if name in ("large", "0") else hvd.Compression.exact

    exact = train_large("trainer")
    for way in WAYS:
        encoded, other = differences(
            train_large(way, "int2", **({} if way == "kvstore" else {"compression": choose})), exact
        )
        assert encoded > 0.01
        assert (other > 0.01) == (way == "kvstore")
    return True


def test_codecs(start):
    cluster = start(policy="bytescheduler")
    assert all(cluster.run(codecs_of_the_job, CODECS))
    assert all(cluster.run(codecs_of_parameters))


def deferred_and_options():
    """Shapes that the first forward finds, compression, and division before the sum."""
    import deft.mxnet as hvd

    expected, deferred = train(""), train("", in_units=0)
    for way in WAYS:
        weights = train(way, in_units=0)
        assert_same_everywhere(weights)
        assert_close(weights, deferred)
        if way == "kvstore":
            continue
        assert_close(train(way, gradient_predivide_factor=2.0), expected)
        halved = train(way, compression=hvd.Compression.fp16)
        assert_same_everywhere(halved)
        assert_close(halved, expected, 2e-3)
    return True


def update_of(gradient, way, **options):
    """What SGD with a rate of 1 takes from a parameter, in the second step: before that keys travel as they are."""
    import mxnet as mx

    param = mx.gluon.Parameter("large", shape=gradient.shape)
    param.initialize(mx.init.Zero())
    step = make_step(way, SingleParameter(param), {"learning_rate": 1.0}, **options)
    for _ in range(2):
        param.set_data(mx.nd.zeros(gradient.shape))
        with mx.autograd.record():
            loss = (param.data() * mx.nd.array(gradient)).sum()
        loss.backward()
        step(1)
    return -param.data().asnumpy()


class SingleParameter:
    def __init__(self, param):
        self._params = {param.name: param}

    def collect_params(self):
        return self._params


def gradients_as_halves():
    """Compression.fp16 is Horovod's: gradients travel as float16, come back as float32, and no codec encodes them, also
    if the daemon encodes all others."""
    import deft.mxnet as hvd

    in_new_session("halves", compression="int8")
    own, exact = large_gradient(hvd.rank()), (large_gradient(0) + large_gradient(1)) / 2
    for way in ("trainer", "optimizer"):
        halved = update_of(own, way, compression=hvd.Compression.fp16)
        np.testing.assert_array_equal(halved, sum_of_halves() / 2)
        assert np.abs(update_of(own, way) - exact).max() > 1e-3, "int8 is not in force"
        large = update_of(own * 60000, way, compression=hvd.Compression.fp16)
        assert not np.isfinite(large).all(), "what float16 cannot hold becomes infinite"


def refusals():
    import deft.mxnet as hvd
    import mxnet as mx

    sparse = mx.gluon.nn.Embedding(5, 2, sparse_grad=True)
    sparse.initialize()
    with pytest.raises(ValueError, match="row_sparse gradients"):
        hvd.DistributedTrainer(sparse.collect_params(), "sgd")
    rows = mx.nd.ones((5, 2)).tostype("row_sparse")
    with pytest.raises(mx.base.MXNetError, match="row_sparse"):
        mx.kv.create("deft").pushpull("rows", rows)
    optimizer = hvd.DistributedOptimizer(mx.optimizer.create("sgd"))
    with pytest.raises(mx.base.MXNetError, match="row_sparse"):
        optimizer.update(0, mx.nd.ones((5, 2)), rows, None)
    with pytest.raises(ValueError, match='"type": "int8"'):
        mx.kv.create("deft").set_gradient_compression({"type": "2bit", "threshold": 0.5})
    devices = mx.gluon.nn.Dense(2, in_units=2)
    devices.initialize(ctx=[mx.cpu(0), mx.cpu(1)])
    with pytest.raises(ValueError, match="several devices"):
        hvd.DistributedTrainer(devices.collect_params(), "sgd")
    with pytest.raises(TypeError, match="compression for"):
        train("trainer", compression="int8")
    return True


def optimizers_stay_themselves():
    import deft.mxnet as hvd
    import mxnet as mx

    plain = mx.optimizer.create("sgd", **SGD)
    wrapped = hvd.DistributedOptimizer(plain)
    wrapped.set_learning_rate(0.5)
    wrapped.rescale_grad = 0.25
    assert isinstance(wrapped, mx.optimizer.Optimizer)
    assert (plain.learning_rate, wrapped.learning_rate, plain.rescale_grad) == (0.5, 0.5, 0.25)
    again = pickle.loads(pickle.dumps(hvd.DistributedOptimizer(plain, compression=hvd.Compression.int8)))
    assert type(again) is hvd.DistributedOptimizer and type(again.plain) is type(plain) and again.learning_rate == 0.5
    assert again._options["compression"] == hvd.Compression.int8
    net = small_net()
    with pytest.warns(UserWarning, match="plain optimizer"):
        trainer = hvd.DistributedTrainer(net.collect_params(), wrapped)
    assert trainer.optimizer is plain
    return True


def accumulate():
    """Gradients of two passes; with the trainer and the store, allreduce_grads() and update() apart."""
    import deft.mxnet as hvd
    import mxnet as mx

    results = {}
    for way in ("", *WAYS):
        net = small_net()
        params = net.collect_params()
        params.setattr("grad_req", "add")
        trainer, ranks = None, 1
        if way == "trainer":
            trainer = hvd.DistributedTrainer(params, "sgd", dict(SGD))
        elif way == "kvstore":
            trainer, ranks = mx.gluon.Trainer(params, "sgd", dict(SGD), kvstore="deft"), hvd.size()
        step = None if trainer else make_step(way, net)
        for x, y in batches(4):
            x, y = own_share(x, y) if way else (x, y)
            params.zero_grad()
            for half in (slice(0, None, 2), slice(1, None, 2)):
                backward(net, x[half], y[half])
            if trainer:
                trainer.allreduce_grads()
                trainer.update(len(x) * ranks)
            else:
                step(len(x))
        results[way] = weights_of(net)
        if way:
            assert_same_everywhere(results[way])
            assert_close(results[way], results[""])
    return True


def frozen_in_some_steps():
    """grad_req is what it is in each step, as for gluon's own Trainer."""
    results = {}
    for way in ("", "trainer"):
        net = small_net()
        first, *_ = net.collect_params().values()
        first.grad_req = "null"
        step = make_step(way, net)
        first.grad_req = "write"
        for number, (x, y) in enumerate(batches(6)):
            net[1].collect_params().setattr("grad_req", "null" if number in (2, 3) else "write")
            x, y = own_share(x, y) if way else (x, y)
            backward(net, x, y)
            step(len(x))
        results[way] = weights_of(net)
    assert_same_everywhere(results["trainer"])
    assert_close(results["trainer"], results[""])


def unfrozen_after_the_first_step():
    net = small_net()
    first, *_ = net.collect_params().values()
    first.grad_req = "null"
    step = make_step("trainer", net)
    for x, y in batches(2):
        backward(net, x, y)
        if first.grad_req == "null":
            step(len(x))
            first.grad_req = "write"
        else:
            with pytest.raises(ValueError, match=f"{first.name} has grad_req 'write', but had 'null' in the first"):
                step(len(x))


def convolutions():
    import mxnet as mx
    from mxnet.gluon import nn

    def make_net():
        mx.random.seed(3)
        np.random.seed(3)
        net = nn.HybridSequential()
        net.add(nn.Conv2D(4, 3, in_channels=1, activation="relu"), nn.MaxPool2D(), nn.Dense(1))
        net.initialize(mx.init.Xavier())
        net(mx.nd.zeros((1, 1, 8, 8)))  # finds the shape of the last layer
        net.hybridize()
        return net

    def images():
        rng = np.random.default_rng(7)
        for _ in range(4):
            x = rng.standard_normal((8, 1, 8, 8)).astype(np.float32)
            yield x, np.sin(x.sum(axis=(2, 3)))

    assert_ways_agree(make_net, images)
    return True


def module_interface():
    """Module with the store, and with the optimizer."""
    import deft.mxnet as hvd
    import mxnet as mx

    data = mx.sym.Variable("data")
    hidden = mx.sym.Activation(mx.sym.FullyConnected(data, num_hidden=8, name="a"), act_type="tanh")
    net = mx.sym.LinearRegressionOutput(mx.sym.FullyConnected(hidden, num_hidden=1, name="b"), name="out")
    weights = []
    for way in ("kvstore", "optimizer", ""):
        mx.random.seed(3)
        np.random.seed(3)
        module = mx.mod.Module(net, label_names=["out_label"])
        rows = 8 if not way else 8 // hvd.size()
        module.bind([("data", (rows, 6))], [("out_label", (rows, 1))])
        module.init_params(mx.init.Xavier())
        hvd.broadcast_parameters(module.get_params()[0], root_rank=0, prefix=way)
        optimizer = mx.optimizer.create("sgd", learning_rate=0.05, rescale_grad=1 / rows)
        if way == "kvstore":
            module.init_optimizer("deft", "sgd", {"learning_rate": 0.05})
        else:
            module.init_optimizer(None, hvd.DistributedOptimizer(optimizer) if way else optimizer)
        for x, y in batches(6):
            x, y = own_share(x, y) if way else (x, y)
            module.forward_backward(mx.io.DataBatch([mx.nd.array(x)], [mx.nd.array(y)]))
            module.update()
        weights.append([value.asnumpy() for _, value in sorted(module.get_params()[0].items())])
        assert_same_everywhere(weights[-1])
    assert_close(weights[0], weights[2])
    assert_close(weights[1], weights[2])
    return True


def stages_of_two_trainings():
    """The second trainer tells the stages of its steps when the first one has ended."""
    import deft
    import mxnet as mx
    from deft.world import session

    in_new_session("stages")
    told = []
    session().stage = lambda stage, step: told.append((stage, step))
    for _ in range(2):
        train("trainer")
        mx.nd.waitall()
        gc.collect()
    expected = [each for step in range(STEPS) for each in ((deft.BACKWARD, step), (deft.FORWARD, step + 1))]
    assert sorted(told) == sorted(expected * 2)


def a_new_session_and_keys_that_differ():
    import deft.mxnet as hvd
    import mxnet as mx

    store = mx.kv.create("deft")
    x = mx.nd.ones(3)
    for _ in range(3):
        store.pushpull("a", x)
        store.pushpull("b", mx.nd.ones(2))
    assert x.asnumpy().tolist() == [8.0] * 3
    store.pushpull("a", x)
    with pytest.raises(mx.base.MXNetError, match="a comes a second time before b came"):
        store.pushpull("a", x)
    store.pushpull("b", mx.nd.ones(2))
    mx.nd.waitall()
    hvd.shutdown()
    hvd.init()
    for _ in range(2):
        y = mx.nd.ones(3)
        store.pushpull("a", y)
        assert y.asnumpy().tolist() == [2.0] * 3
    return True


def steps_of_two_sessions():
    """A trainer, a store and an optimizer outlive sessions, also one of a single step."""
    import deft.mxnet as hvd

    def another_session(number):
        if number in (1, 4):
            hvd.shutdown()
            hvd.init()

    assert_ways_agree(small_net, lambda: batches(6), another_session)


def everything_else():
    deferred_and_options()
    refusals()
    optimizers_stay_themselves()
    accumulate()
    frozen_in_some_steps()
    unfrozen_after_the_first_step()
    convolutions()
    module_interface()
    stages_of_two_trainings()
    steps_of_two_sessions()
    a_new_session_and_keys_that_differ()
    gradients_as_halves()
    return True


def test_options_optimizers_modules_and_sessions(start):
    assert all(start(policy="fifo").run(everything_else))


def residuals_before_a_checkpoint():
    """What is missing of the gradients so far after a step, and after the next one, which brings it."""
    import deft.mxnet as hvd
    import mxnet as mx
    from deft.gradient_group import GradientSpec
    from deft.mxnet.exchange import Exchange

    shape, dtype = (64, 128), np.dtype(np.float32)
    exchange = Exchange("large", [GradientSpec("large", dtype, shape, dtype, "int2")])
    out, missing, off = mx.nd.zeros(shape), np.zeros(shape), []
    for step in range(6):
        own = [np.random.default_rng((step, rank)).standard_normal(shape) for rank in range(hvd.size())]
        if step == 5:
            hvd.flush_residuals()
        exchange.push(0, mx.nd.array(own[hvd.rank()]), out)
        missing += sum(own) - out.asnumpy()
        off.append(np.abs(missing).max())
    return off[-2:]


def test_the_step_before_a_checkpoint_brings_residuals(start):
    for before, after in start(policy="bytescheduler").run(residuals_before_a_checkpoint):
        assert before > 0.1 and after < 1e-4

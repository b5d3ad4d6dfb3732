"""What trainers do beside plain steps: two of them at once, states in files, unused parameters, loss scales."""

import contextlib
import threading

import numpy as np
import pytest
from mxnet_jobs import SGD, WAYS, backward, small_net, weights_of
from training_checks import assert_close, assert_same_everywhere, batches, own_share

WAIT_SECONDS = 60


@contextlib.contextmanager
def first_broadcast_lasts_until_the_second_begins():
    import deft

    began, seen = [], threading.Event()
    broadcast, when_done = deft.Session.broadcast, deft.Operation.when_done

    def note(session, name, *arguments):
        began.append(name)
        if len(began) == 2:
            seen.set()
        return broadcast(session, name, *arguments)

    def hold(operation, callback):
        # libdeft has one thread for callbacks, so the one that waits gets a thread of its own.
        def later(error):
            threading.Thread(target=lambda: (seen.wait(WAIT_SECONDS), callback(error))).start()

        when_done(operation, later)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(deft.Session, "broadcast", note)
        patch.setattr(deft.Operation, "when_done", hold)
        yield
        assert seen.is_set()


def two_stores():
    """Both have a parameter 0, and the broadcast of the second begins while that of the first is under way."""
    import deft.mxnet as hvd
    import mxnet as mx

    params = [mx.gluon.Parameter(name, shape=(3,)) for name in ("one", "other")]
    for value, param in enumerate(params):
        param.initialize(mx.init.Constant(10 * hvd.rank() + value))
    trainers = [mx.gluon.Trainer([param], "sgd", {"learning_rate": 0.0}, kvstore="deft") for param in params]
    with first_broadcast_lasts_until_the_second_begins():
        for param, trainer in zip(params, trainers):
            with mx.autograd.record():
                loss = param.data().sum()
            loss.backward()
            trainer.step(1)
        assert [param.data().asnumpy().tolist() for param in params] == [[0.0] * 3, [1.0] * 3]


def states_in_files(folder):
    """A training that loads its own file goes on as before, and still averages."""
    import deft.mxnet as hvd
    import mxnet as mx

    for way in WAYS:
        path = f"{folder}/{way}.{hvd.rank()}"
        results = []
        for load in (False, True):
            net = small_net()
            params, ranks = net.collect_params(), 1
            if way == "trainer":
                trainer = hvd.DistributedTrainer(params, "sgd", dict(SGD))
            elif way == "kvstore":
                trainer, ranks = mx.gluon.Trainer(params, "sgd", dict(SGD), kvstore="deft"), hvd.size()
            else:
                optimizer = hvd.DistributedOptimizer(mx.optimizer.create("sgd", **SGD), gradient_predivide_factor=2.0)
                trainer = mx.gluon.Trainer(params, optimizer, kvstore=None)
            for number, (x, y) in enumerate(batches(4)):
                if number == 2 and load:
                    trainer.save_states(path)
                    trainer.load_states(path)
                x, y = own_share(x, y)
                backward(net, x, y)
                trainer.step(len(x) * ranks)
            results.append(weights_of(net))
            assert_same_everywhere(results[-1])
        assert_close(results[1], results[0], 1e-6)


def a_file_of_another_policy(path):
    import deft.mxnet as hvd
    import mxnet as mx

    net = small_net()
    plain = mx.optimizer.create("sgd", **SGD)
    assert plain.aggregate_num > 1
    mx.gluon.Trainer(net.collect_params(), plain, kvstore=None).save_states(path)
    trainer = hvd.DistributedTrainer(net.collect_params(), "sgd", dict(SGD))
    assert trainer.optimizer.aggregate_num == 1
    trainer.load_states(path)
    assert trainer.optimizer.aggregate_num == 1, "one update would wait for the sums of several parameters"
    return True


def parameters_that_a_step_does_not_use():
    """Of two branches each step uses one: the ranks the same one, different ones, and the same again. A parameter is
    updated if a rank has used it, as in one process on the whole batch; otherwise momentum and gradient rest."""
    import deft.mxnet as hvd
    import mxnet as mx

    used = [(0, 0), (0, 1), (1, 1), (1, 1), (0, 0)]  # branch of rank 0, of rank 1
    results = {}
    for way in ("", "trainer"):
        branches = [small_net(seed=seed) for seed in (3, 4)]
        params = [param for net in branches for param in net.collect_params().values()]
        if way:
            trainer = hvd.DistributedTrainer(params, "sgd", dict(SGD))
        else:
            trainer = mx.gluon.Trainer(params, "sgd", dict(SGD), kvstore=None)
        for (x, y), of_ranks in zip(batches(len(used)), used):
            mine = [hvd.rank()] if way else [0, 1]
            with mx.autograd.record():
                losses = [
                    mx.nd.square(branches[of_ranks[rank]](mx.nd.array(x[rank::2])) - mx.nd.array(y[rank::2])).sum()
                    for rank in mine
                ]
                loss = sum(losses[1:], losses[0])
            loss.backward()
            used_now = {param for branch in of_ranks for param in branches[branch].collect_params().values()}
            resting = [param for param in params if param not in used_now]
            before = [param.grad().asnumpy() for param in resting]
            trainer.step(4 if way else 8, ignore_stale_grad=True)
            for param, was in zip(resting, before):
                np.testing.assert_array_equal(param.grad().asnumpy(), was)
        results[way] = [param.data().asnumpy() for param in params]
    assert_same_everywhere(results["trainer"])
    assert_close(results["trainer"], results[""])


def unused_parameters_that_are_refused():
    import deft.mxnet as hvd
    import mxnet as mx

    net = small_net()
    trainer = mx.gluon.Trainer(net.collect_params(), "sgd", kvstore="deft")
    with pytest.raises(ValueError, match="the store `deft` takes no ignore_stale_grad"):
        trainer.step(1, ignore_stale_grad=True)
    with pytest.raises(ValueError, match="goes with step"):
        hvd.DistributedTrainer(net.collect_params(), "sgd").update(1, ignore_stale_grad=True)


def loss_scales_and_what_a_codec_leaves_out():
    """topk sends a quarter of the values. What it leaves out of a step comes later, when the scale is another."""
    import deft.mxnet as hvd
    import mxnet as mx
    from mxnet.contrib import amp

    amp.init()
    values = [np.random.default_rng(rank).standard_normal((96, 96)).astype(np.float32) for rank in range(2)]
    param = mx.gluon.Parameter("large", shape=(96, 96))
    param.initialize(mx.init.Zero())
    trainer = hvd.DistributedTrainer([param], "sgd", {"learning_rate": 1.0})
    amp.init_trainer(trainer)
    for step in range(12):
        with mx.autograd.record():
            loss = (param.data() * mx.nd.array(values[hvd.rank()] * (step == 0))).sum()
            with amp.scale_loss(loss, trainer) as scaled:
                mx.autograd.backward(scaled)
        trainer.step(1)
        if step == 0:
            assert np.abs(-param.data().asnumpy() - sum(values) / 2).max() > 0.1, "topk is not in force"
            trainer._amp_loss_scaler._next_loss_scale /= 4
    np.testing.assert_allclose(-param.data().asnumpy(), sum(values) / 2, atol=1e-5)
    return True


def everything(folder):
    two_stores()
    states_in_files(folder)
    parameters_that_a_step_does_not_use()
    unused_parameters_that_are_refused()
    return True


def test_two_trainers_states_and_unused_parameters(start, tmp_path):
    assert all(start(policy="fifo").run(everything, str(tmp_path)))


def test_one_update_a_parameter_after_loading(start, tmp_path):
    assert all(start(1, policy="bytescheduler").run(a_file_of_another_policy, str(tmp_path / "states"), workers=1))


def test_loss_scales_and_what_a_codec_leaves_out(start):
    assert all(start(policy="fifo", compression="topk/ratio=0.25").run(loss_scales_and_what_a_codec_leaves_out))

"""Gradients that nobody uses any more give their memory back, when the engine's work in the arena has ended."""

import gc

import pytest
from arena_memory import arenas, groups_left, settled
from mxnet_jobs import WAYS, backward, make_step, small_net
from training_checks import assert_close, assert_same_everywhere, batches, own_share

COUNT = 4
PLAIN = {"learning_rate": 0.05}


def rows(steps):
    return [own_share(x, y) for x, y in batches(steps)]


def train(net, step, steps=3):
    for x, y in rows(steps):
        backward(net, x, y)
        step(4)


def weights(net):
    return [param.data().asnumpy() for param in net.collect_params().values()]


def meet(name="all are here"):
    import deft.mxnet as hvd
    import mxnet as mx

    hvd.allreduce(mx.nd.ones(1), name=name).wait_to_read()


def wait_for_engine():
    import mxnet as mx

    mx.nd.waitall()


class Other:
    """A trainer that lives while others come and go."""

    def __init__(self):
        self.net = small_net()
        self.step = make_step("trainer", self.net)
        train(self.net, self.step)

    def train(self):
        train(self.net, self.step, 1)
        assert_same_everywhere(weights(self.net))


def one_after_the_other(other, way):
    """They end while the engine still works in their arenas: nothing waits for the last step."""
    memory, expected = [], None
    for _ in range(COUNT):
        net = small_net()
        step = make_step(way, net, PLAIN)
        train(net, step)
        del step
        expected = expected or weights(net)
        assert_close(weights(net), expected)
        del net
        gc.collect()  # a trainer of gluon's and its parameters are a cycle
        wait_for_engine()
        assert arenas() <= 2
        other.train()
        assert arenas() == 1, "it has given its arena back"
        meet()
        memory.append(settled(1))
    assert len(set(memory)) == 1, "it stays flat"


def at_different_times(other):
    """Each rank collects a cycle at a time of its own. What has gone cannot be used."""
    import deft.mxnet as hvd
    from deft import DeftError

    net = small_net()
    trainer = hvd.DistributedTrainer(net.collect_params(), "sgd", dict(PLAIN))
    train(net, trainer.step)
    group = trainer._exchange._sums.group
    gc.disable()
    trainer.own = trainer
    del net, trainer
    if hvd.rank() == 0:
        gc.collect()
    wait_for_engine()
    other.train()
    meet("rank 0 has collected it")
    assert arenas() == (1 if hvd.rank() == 0 else 2)
    assert groups_left() == 2, "the other rank has not"
    meet("all have seen that")
    gc.enable()
    gc.collect()
    wait_for_engine()
    other.train()
    settled(1)
    for use in (lambda: group.ready(0), group.collect, lambda: group.give_zeros(0)):
        with pytest.raises(DeftError, match="was released"):
            use()


def one_has_no_more_data(other, way):
    """A rank lets go of its optimizer before it joins. The others still get its zeros."""
    import deft.mxnet as hvd

    net = small_net()
    step = make_step(way, net, PLAIN)
    train(net, step, 3 if hvd.rank() == 1 else 6)
    del step, net
    gc.collect()
    hvd.join()
    wait_for_engine()
    other.train()
    meet()
    settled(1)


def another_codec(other):
    """The store's gradients begin anew when it is told another codec."""
    import mxnet as mx

    store = mx.kv.create("deft")
    for codec in ("int8", "fp16"):
        store.set_gradient_compression({"type": codec})
        for _ in range(3):
            value = mx.nd.ones(3000)
            store.pushpull(0, value)
            assert (value.asnumpy() == 2).all()
        wait_for_engine()
        assert arenas() == 2
    del store, value
    other.train()
    meet()
    settled(1)


def let_go():
    other = Other()
    for way in WAYS:
        one_after_the_other(other, way)
    at_different_times(other)
    for way in WAYS:
        one_has_no_more_data(other, way)
    another_codec(other)
    other.train()
    return True


def test_what_nobody_uses_gives_its_memory_back(start):
    assert all(start(1, policy="bytescheduler").run(let_go))

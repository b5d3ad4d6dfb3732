"""The gradients of a DistributedTrainer lie in the arena, and outlive it."""

import ctypes
import gc

import numpy as np
import pytest
from arena_memory import arena_ranges, arenas, settled
from mxnet_jobs import backward, make_step, small_net, weights_of
from training_checks import assert_close, assert_same_everywhere, batches, own_share

PLAIN = {"learning_rate": 0.05}
COUNT = 6  # steps


def rows(steps=COUNT):
    return [own_share(x, y) for x, y in batches(steps)]


def trainer_of(net, **options):
    import deft.mxnet as hvd

    return hvd.DistributedTrainer(net.collect_params(), "sgd", dict(PLAIN), **options)


def train(net, trainers, given):
    for number, (x, y) in enumerate(given):
        backward(net, x, y)
        trainers[number % len(trainers)].step(4)


def gradients_of(net):
    return [param.grad() for param in net.collect_params().values()]


def address_of(array):
    import mxnet as mx

    array.wait_to_read()
    address = ctypes.c_void_p()
    mx.base.check_call(mx.base._LIB.MXNDArrayGetData(array.handle, ctypes.byref(address)))
    return address.value


def lies_in_an_arena(array):
    address = address_of(array)
    return any(begin <= address < end for begin, end in arena_ranges())


def local_gradients(net, x, y):
    """Those that backward of this rank gives."""
    like = small_net()
    for own, other in zip(like.collect_params().values(), net.collect_params().values()):
        own.set_data(other.data())
    backward(like, x, y)
    return [gradient.asnumpy() for gradient in gradients_of(like)]


def nothing_is_copied():
    net, given = small_net(), rows()
    held = gradients_of(net) + [param.list_grad()[0] for param in net.collect_params().values()]
    assert not any(map(lies_in_an_arena, gradients_of(net)))
    train(net, [trainer_of(net)], given)
    assert all(map(lies_in_an_arena, gradients_of(net)))
    assert all(map(lies_in_an_arena, held)), "whoever had the array sees the sums"
    one_process = small_net()
    step = make_step("", one_process, PLAIN)
    for x, y in batches(COUNT):
        backward(one_process, x, y)
        step(8)
    assert_close(weights_of(net), weights_of(one_process))
    assert_same_everywhere(weights_of(net))
    return weights_of(one_process)


def two_trainers_take_turns(expected):
    """The newer one has the gradients; the other one copies, as without an arena."""
    net, given = small_net(), rows()
    first = trainer_of(net)
    train(net, [first], given[:2])
    train(net, [trainer_of(net), first], given[2:])
    assert_close(weights_of(net), expected)
    assert_same_everywhere(weights_of(net))


def other_dtypes_stay():
    import deft.mxnet as hvd

    net = small_net()
    train(net, [trainer_of(net, compression=hvd.Compression.fp16)], rows(2))
    assert not any(map(lies_in_an_arena, gradients_of(net)))


def other_arrays_are_copied(expected):
    """A parameter that gets a new array for its gradient in the middle of a training."""
    net, given = small_net(), rows()
    trainer = trainer_of(net)
    train(net, [trainer], given[:3])
    param = list(net.collect_params().values())[1]
    param._init_grad()
    train(net, [trainer], given[3:])
    assert not lies_in_an_arena(param.grad())
    assert_close(weights_of(net), expected)


def the_trainer_goes(other):
    """Its parameters stay, and are trained by another one in this process alone."""
    import mxnet as mx

    net, given = small_net(), rows()
    train(net, [trainer_of(net)], given[:2])
    sums = [gradient.asnumpy() for gradient in gradients_of(net)]
    plain = mx.gluon.Trainer(net.collect_params(), "sgd", dict(PLAIN), kvstore=None)
    gc.collect()
    mx.nd.waitall()
    train(*other, rows(1))
    mx.nd.waitall()  # what begins the next step releases what nobody uses
    assert arenas() == 1
    settled(1)
    assert_close([gradient.asnumpy() for gradient in gradients_of(net)], sums)
    for x, y in given[2:]:
        expected = local_gradients(net, x, y)
        backward(net, x, y)
        assert_close([gradient.asnumpy() for gradient in gradients_of(net)], expected)
        plain.step(4)


def who_has_joined_gives_zeros():
    """Rank 1 lets go of its trainer and joins, and rank 0 trains on with its own rows."""
    import deft.mxnet as hvd
    import mxnet as mx

    net, given = small_net(), rows()
    trainer = trainer_of(net)
    train(net, [trainer], given[: COUNT if hvd.rank() == 0 else 3])
    start = small_net()
    step = make_step("", start, PLAIN)
    for number, (x, y) in enumerate(batches(COUNT)):
        backward(start, *((x, y) if number < 3 else (x[::2], y[::2])))
        step(8)
    if hvd.rank() == 0:
        assert_close(weights_of(net), weights_of(start))
    del trainer, net
    gc.collect()
    mx.nd.waitall()
    hvd.join()


def the_session_ends(net):
    """After it gradients hold what they held, and a graph that is older writes them."""
    import deft.mxnet as hvd
    import mxnet as mx

    (x, y) = rows(1)[0]
    sums = [gradient.asnumpy() for gradient in gradients_of(net)]
    with mx.autograd.record():
        loss = mx.nd.square(net(mx.nd.array(x)) - mx.nd.array(y)).sum()
    hvd.shutdown()
    assert arenas() == 0
    np.testing.assert_equal([gradient.asnumpy() for gradient in gradients_of(net)], sums)
    loss.backward()
    assert_close([gradient.asnumpy() for gradient in gradients_of(net)], local_gradients(net, x, y))


def live():
    expected = nothing_is_copied()
    two_trainers_take_turns(expected)
    other_dtypes_stay()
    other_arrays_are_copied(expected)
    gc.collect()
    net = small_net()
    other = net, [trainer_of(net)]
    train(*other, rows(1))
    settled(1)
    the_trainer_goes(other)
    who_has_joined_gives_zeros()
    the_session_ends(net)
    return True


@pytest.mark.parametrize("policy", ["fifo", "bytescheduler"])
def test_gradients_lie_in_the_arena_and_outlive_it(start, policy):
    assert all(start(2, policy=policy).run(live))

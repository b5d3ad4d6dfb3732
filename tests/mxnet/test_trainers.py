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


def everything(folder):
    two_stores()
    return True


def test_two_trainers_states_and_unused_parameters(start, tmp_path):
    assert all(start(policy="fifo").run(everything, str(tmp_path)))

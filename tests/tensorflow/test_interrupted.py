"""A step that an error or Ctrl-C has ended on one rank: what the next one does, and what is said of it."""

import logging
import os
import signal
import threading

import numpy as np
import pytest
import tensorflow as tf


class Notes(logging.Handler):
    """The messages of Deft's log."""

    def __init__(self):
        super().__init__()
        self.texts = []
        logging.getLogger("deft").addHandler(self)

    def emit(self, record):
        self.texts.append(record.getMessage())


def a_backward_that_fails():
    """On rank 0, behind its first gradient, in a graph. Both ranks go on, and rank 0 hears that replicas differ."""
    import deft.tensorflow as hvd
    from deft.gradient_group import LateGroup

    notes, handed, fails = Notes(), threading.Event(), []
    ones, factor = np.ones(1 << 16, np.float32), tf.constant(1.0 + hvd.rank())
    first, last = tf.Variable(ones), tf.Variable(2 * ones)  # a smaller gradient would go with the next one

    def fail_if_asked(upstream):
        if fails and handed.wait(60):
            raise ArithmeticError("of the script")
        return upstream

    @tf.custom_gradient
    def gate(x):
        def gradient(upstream):
            result = tf.numpy_function(fail_if_asked, [upstream], tf.float32, stateful=False)
            return tf.ensure_shape(result, upstream.shape)

        return tf.identity(x), gradient

    @tf.function
    def step(factor):
        with tf.GradientTape() as tape:
            loss = factor * tf.reduce_sum(gate(first * first) + last * last)
        return hvd.DistributedGradientTape(tape).gradient(loss, [first, last])

    def check(*expected):
        np.testing.assert_allclose(step(factor), np.outer(expected, ones))

    check(3.0, 6.0)
    if hvd.rank() == 0:
        with pytest.MonkeyPatch.context() as patch:
            hand_over = LateGroup.hand_over
            patch.setattr(LateGroup, "hand_over", lambda *given: hand_over(*given) or handed.set())
            fails.append(True)
            with pytest.raises(tf.errors.UnknownError, match="of the script"):
                step(factor)
        fails.clear()
    else:
        check(2.0, 6.0)  # rank 0 had handed over the second one alone
    check(3.0, 6.0)
    said = [text for text in notes.texts if "did not apply the averages of step 1" in text]
    assert len(said) == (1 if hvd.rank() == 0 else 0), notes.texts
    return True


a_backward_that_fails.threads = 4


def test_the_next_step_finishes_one_that_an_error_has_ended(start):
    assert all(start(policy="fifo").run(a_backward_that_fails))


def a_graph_that_waits():
    """Rank 1 comes to a step only when Ctrl-C has ended that step on rank 0."""
    import deft
    import deft.tensorflow as hvd
    from deft import world

    variable, rank = tf.Variable(np.zeros(4, np.float32)), hvd.rank()

    @tf.function
    def step(target):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum((variable - target) ** 2) / 2
        (gradient,) = hvd.DistributedGradientTape(tape).gradient(loss, [variable])
        return gradient

    def check():
        np.testing.assert_allclose(step(tf.constant(rank + 1.0)), np.full(4, -1.5))

    check()
    if rank == 0:
        look, waits = deft.Session.look, threading.Event()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(deft.Session, "look", lambda session: waits.set() or look(session))
            ends = threading.Thread(target=lambda: waits.wait(60) and os.kill(os.getpid(), signal.SIGINT))
            ends.start()
            with pytest.raises((KeyboardInterrupt, RuntimeError)) as caught:
                step(tf.constant(1.0))
            assert "KeyboardInterrupt" in repr(caught.value)
            ends.join()
        world.session().set("ended", b"1")
    else:
        assert world.session().ask("ended").answer(60)  # a collective would wait behind that gradient
        check()  # with the gradient that rank 0 had handed over
    check()
    return True


def test_ctrl_c_ends_a_graph_that_waits(start):
    assert all(start(policy="fifo").run(a_graph_that_waits))

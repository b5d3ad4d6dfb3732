"""A step that an error has ended on one rank: what the next one does, and what is said of it."""

import logging
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

"""What encodings have left out of gradients, and a step that brings it."""

import numpy as np
import tensorflow as tf


def residuals_before_a_checkpoint():
    """What is missing of the gradients so far after a step, and after the next one, which brings it."""
    import deft.tensorflow as hvd

    variable, missing, off = tf.Variable(tf.zeros((64, 128))), np.zeros((64, 128)), []
    for step in range(6):
        own = [np.random.default_rng((step, rank)).standard_normal((64, 128)) for rank in range(hvd.size())]
        if step == 5:
            hvd.flush_residuals()
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(variable * own[hvd.rank()])
        tape = hvd.DistributedGradientTape(tape, op=hvd.Sum, compression=hvd.Compression.int2)
        missing += sum(own) - tape.gradient(loss, variable).numpy()
        off.append(np.abs(missing).max())
    return off[-2:]


def test_the_step_before_a_checkpoint_brings_residuals(start):
    for before, after in start(policy="bytescheduler").run(residuals_before_a_checkpoint):
        assert before > 0.1 and after < 1e-4

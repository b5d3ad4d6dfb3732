"""Gradients that nobody uses any more give their memory back: on each rank at a time of its own, and on the daemon."""

import gc

import keras
import numpy as np
import pytest
import tensorflow as tf
from arena_memory import arenas, groups_left, settled

COUNT = 6


def ones():
    return [tf.Variable(tf.ones(3000)), tf.Variable(tf.ones(5))]


def step_of(optimizer, variables):
    """A function of a factor. Each call takes the average of the ranks' factors from all elements."""

    @tf.function
    def step(factor):
        with tf.GradientTape() as tape:
            loss = factor * sum(tf.reduce_sum(variable) for variable in variables)
        optimizer.apply(tape.gradient(loss, variables), variables)

    return lambda factor: step(tf.constant(float(factor)))


def distributed():
    import deft.tensorflow as hvd

    return hvd.DistributedOptimizer(keras.optimizers.SGD(1.0))


def meet(name="all are here"):
    import deft.tensorflow as hvd

    return float(hvd.allreduce(tf.ones(1), op=hvd.Sum, name=name)[0])


class Other:
    """An optimizer that lives while others come and go."""

    def __init__(self):
        self.variables, self.taken = ones(), 0.0
        self.step = step_of(distributed(), self.variables)
        self.train()

    def train(self):
        import deft.tensorflow as hvd

        self.step(1 + 2 * hvd.rank())
        self.taken += 2.0
        for variable in self.variables:
            np.testing.assert_array_equal(variable, 1.0 - self.taken)


def one_after_the_other(other):
    """Optimizers of the same variables, and of new ones, and tapes."""
    shared, memory = ones(), []
    for number in range(COUNT):
        variables = ones() if number % 2 else shared
        step = step_of(distributed(), variables)
        for _ in range(2):
            step(1.0)
            assert arenas() == 2, "the one before has given its arena back"
        other.train()
        meet()
        memory.append(settled(2))
        del step
    for _ in range(COUNT):
        variables = ones()
        averages_by_tape(variables)
        assert arenas() == 2
        meet()
        memory.append(settled(2))
        del variables
    meet()
    assert settled(1) < memory[0]
    assert arenas() == 1 and len(set(memory)) == 1, "it stays flat"
    other.train()


def averages_by_tape(variables):
    import deft.tensorflow as hvd

    with tf.GradientTape() as tape:
        loss = (1.0 + 2.0 * hvd.rank()) * sum(tf.reduce_sum(variable) for variable in variables)
    for gradient in hvd.DistributedGradientTape(tape).gradient(loss, variables):
        np.testing.assert_array_equal(gradient, 2.0)


def cycles_at_different_times(other):
    """What is part of a cycle ends on each rank when that rank collects it."""
    import deft.tensorflow as hvd

    cycle = [distributed(), ones()]
    cycle.append(cycle)
    step_of(*cycle[:2])(1.0)
    averages_by_tape(cycle[1])
    meet()
    assert groups_left() == 3
    gc.disable()
    del cycle
    if hvd.rank() == 0:
        gc.collect()
    other.train()
    meet("rank 0 has collected it")
    assert arenas() == (1 if hvd.rank() == 0 else 3)
    assert groups_left() == 3, "the other rank has not"
    meet("all have seen that")
    gc.enable()
    gc.collect()
    other.train()
    settled(1)


def applied(variables):
    """A graph that keeps neither its optimizer nor the Python function, and the optimizer's apply()."""
    optimizer = distributed()
    optimizer.build(variables)

    @tf.function
    def step():
        optimizer.apply([tf.ones(3000), tf.ones(5)], variables)

    return step.get_concrete_function(), optimizer.apply, [optimizer]


def averaged():
    """A graph that does not keep its variables, and the variables."""
    import deft.tensorflow as hvd

    variables = ones()

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            loss = sum(tf.reduce_sum(variable) for variable in variables)
        return hvd.DistributedGradientTape(tape).gradient(loss, variables)

    return step.get_concrete_function(), variables


def functions_that_outlive_them(other):
    """Their next call says that the group has gone, and a later optimizer of the same variables does not hide it."""
    shared = ones()
    by_apply, apply, optimizers = applied(shared)
    by_tape, variables = averaged()
    for _ in range(2):
        by_apply()
        by_tape()
    meet()
    settled(3)
    optimizers.clear()  # TensorFlow has taken a snapshot of this frame's names
    variables.clear()
    gc.collect()
    for function in (by_apply, by_tape, by_apply, by_tape):
        with pytest.raises(tf.errors.InvalidArgumentError, match=r"gradients 'tensorflow\.\d+' were released"):
            function()
    with pytest.raises(ReferenceError, match="keep it as long"):
        apply([tf.ones(3000), tf.ones(5)], shared)
    step_of(distributed(), shared)(1.0)
    with pytest.raises(tf.errors.InvalidArgumentError, match="were released"):
        by_apply()
    other.train()
    meet()
    settled(1)


def built_for_others(other):
    """An optimizer that is built again, for other variables, takes the memory of one group."""
    optimizer, before, after = distributed(), ones(), ones()
    step_before = step_of(optimizer, before)
    step_before(1.0)
    optimizer.built = False
    optimizer.build(after)
    step_after = step_of(optimizer, after)
    step_after(1.0)
    assert arenas() == 2
    with pytest.raises(tf.errors.InvalidArgumentError, match="were released"):
        step_before(1.0)
    step_after(1.0)
    meet()
    settled(2)
    np.testing.assert_array_equal(after[1], -1.0)
    np.testing.assert_array_equal(before[1], 0.0)
    other.train()


def a_step_that_ended_by_an_error(other):
    """Rank 0 has begun a step, ends it by an error, and lets go of the optimizer. Rank 1 gets zeros for the rest."""
    import deft.tensorflow as hvd
    from deft.gradient_group import GradientGroup

    variables, optimizer = ones(), distributed()
    gradients = [tf.ones(3000), tf.ones(5)]
    optimizer.apply(gradients, variables)
    if hvd.rank() == 0:
        with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(GradientGroup, "collect", interrupted)
            optimizer.apply(gradients, variables)
        with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(GradientGroup, "hand_over", interrupted)
            optimizer.apply(gradients, variables)
    else:
        optimizer.apply(gradients, variables)
        np.testing.assert_array_equal(variables[1], -1.0)
    del optimizer
    other.train()
    meet()
    settled(1)


def interrupted(*_):
    raise KeyboardInterrupt


def one_has_no_more_data(other):
    """A rank lets go of its optimizer before it joins. The others still get its zeros."""
    import deft.tensorflow as hvd

    variables = ones()
    step = step_of(distributed(), variables)
    for _ in range(1 if hvd.rank() == 1 else 4):
        step(1.0)
    del step
    hvd.join()
    assert arenas() == 1
    assert float(variables[1][0]) == (0.0 if hvd.rank() == 1 else -1.5)
    settled(1)
    other.train()


def let_go():
    import deft.tensorflow as hvd

    other = Other()
    one_after_the_other(other)
    cycles_at_different_times(other)
    functions_that_outlive_them(other)
    built_for_others(other)
    gc.collect()  # pytest's notes on errors hold frames
    a_step_that_ended_by_an_error(other)
    one_has_no_more_data(other)
    hvd.shutdown()
    hvd.init(job="again")
    other.train()
    return True


def test_what_nobody_uses_gives_its_memory_back(start):
    assert all(start(1, policy="bytescheduler").run(let_go))

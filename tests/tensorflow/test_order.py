"""Calls of graphs run in the order of the program, also in nested functions, branches and loops. No daemon is there."""

import numpy as np
import tensorflow as tf
from deft.gradient_group import GradientSpec
from deft.tensorflow.averaging import runs
from deft.tensorflow.host import on_host

NESTED = ("PartitionedCall", "StatefulPartitionedCall", "While", "StatelessWhile", "If", "StatelessIf")


def comes_after(later, earlier):
    """Whether `later` waits for `earlier`."""
    seen, left = set(), [later]
    while left:
        operation = left.pop()
        if operation is earlier:
            return True
        if operation.name not in seen:
            seen.add(operation.name)
            left += [*operation.control_inputs, *(tensor.op for tensor in operation.inputs)]
    return False


def test_calls_of_nested_functions_are_in_the_order_of_the_program():
    ran, first, second = [], tf.Variable(1.0), tf.Variable(2.0)

    def call(name, x):
        def note(array):
            ran.append(name)
            return [array]

        return on_host(note, [x], [tf.float32], [()])[0]

    of_first = tf.function(lambda x: call("of first", x * first))
    of_second = tf.function(lambda x: call("of second", x * second))

    def repeated(count, x):
        call("loop", x * first)
        return count + 1, x

    @tf.function
    def outer(x):
        results = [call("begin", x), of_first(x), of_second(x)]
        results.append(tf.while_loop(lambda count, _: count < 2, repeated, [0, x])[1])
        results.append(tf.cond(x > 0, lambda: call("branch", x * second), lambda: x))
        return [*results, call("end", x)]

    x = tf.constant(1.0)
    operations = outer.get_concrete_function(x).graph.get_operations()
    waiting = [one for one in operations if one.type in (*NESTED, "PyFunc", "EagerPyFunc")]
    assert len(waiting) == 6
    for earlier, later in zip(waiting, waiting[1:]):
        assert comes_after(later, earlier), f"{later.name} does not wait for {earlier.name}"
    for _ in range(3):
        ran.clear()
        np.testing.assert_allclose(outer(x), [1.0, 1.0, 2.0, 1.0, 2.0, 1.0])
        assert ran == ["begin", "of first", "of second", "loop", "loop", "branch", "end"]


def test_a_gradient_through_nested_calls_needs_no_gradient_of_their_order():
    variable = tf.Variable(3.0)

    @tf.custom_gradient
    def twice(x):
        doubled = on_host(lambda array: [array + array], [x], [tf.float32], [()])[0]
        return doubled, lambda upstream: on_host(lambda array: [array + array], [upstream], [tf.float32], [()])[0]

    nested = tf.function(lambda x: twice(x * variable))

    @tf.function
    def gradient(x):
        with tf.GradientTape() as tape:
            loss = nested(x) + nested(nested(x))
        return tape.gradient(loss, variable)

    np.testing.assert_allclose(gradient(tf.constant(1.0)), 2.0 + 2 * 4.0 * 3.0)


def test_gradients_of_branches_and_loops_run_in_the_order_of_the_program():
    ran, variable = [], tf.Variable(1.0)

    def call(name, x):
        def note(array):
            ran.append(name)
            return [array * 2]

        return on_host(note, [x], [tf.float32], [()])[0]

    def of(name, x):
        @tf.custom_gradient
        def named(x):
            return call(name, x), lambda upstream: call(f"{name} back", upstream)

        return named(x)

    def branch(x):
        return tf.cond(x > 0, lambda: of("second", of("first", x * variable)), lambda: x)

    def loop(x, nested=branch):
        return tf.while_loop(lambda count, _: count < 2, lambda count, y: (count + 1, nested(y)), [0, x])[1]

    function = tf.function(branch)

    def function_in_branch(x):
        return tf.cond(x > 0, lambda: function(x), lambda: x)

    def function_in_loop(x):
        return loop(x, tf.function(function_in_branch))

    functions = (function_in_branch, tf.function(function_in_branch), function_in_loop)
    for repeated, nested in ((1, branch), (2, loop), (1, function), *zip((1, 1, 2), functions)):

        @tf.function
        def gradient(x, nested=nested):
            with tf.GradientTape() as tape:
                loss = of("end", nested(x))
            return tape.gradient(loss, variable)

        ran.clear()
        assert gradient(tf.constant(1.0)) == repeated * 2.0 * 4**repeated
        forward = ["first", "second"] * repeated
        assert ran == [*forward, "end", "end back", *(f"{name} back" for name in reversed(forward))]


def test_small_gradients_go_with_the_next_ones():
    """A call of Python costs as much as many bytes. Each gradient goes once, the last one first."""
    floats = [10, 1 << 16, 3, 5, 1 << 20, 7, 1 << 15, 1 << 15, 1]
    single = np.dtype(np.float32)
    specs = [GradientSpec(str(i), single, (count,), single) for i, count in enumerate(floats)]
    assert list(runs(specs)) == [[8, 7, 6], [5, 4], [3, 2, 1], [0]]
    assert list(runs([])) == []
    half = [GradientSpec("h", np.dtype(np.float16), (1 << 16,), np.dtype(np.float16))] * 3
    assert list(runs(half)) == [[2, 1], [0]]

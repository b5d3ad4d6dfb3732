"""Python functions on numpy arrays, called eagerly or from a graph.

In a graph the calls run in the order of the program, on every rank alike, so no rank waits in one call for a rank that
waits in another. Each of them uses one variable: TensorFlow orders what uses it, also in nested functions, branches and
loops. A call that waits for no rank need not be ordered. libdeft's functions wait without Python's lock.
"""

import functools
import threading
import weakref

from deft import DeftError

import tensorflow as tf
from tensorflow.python.framework.func_graph import FuncGraph
from tensorflow.python.ops import control_flow_util, control_flow_v2_func_graphs

_ERRORS = {  # by DEFT_E* of deft.h
    1: tf.errors.InvalidArgumentError,
    2: tf.errors.FailedPreconditionError,  # as in Horovod, if ranks ask for different things
    3: tf.errors.DeadlineExceededError,
    4: tf.errors.UnavailableError,
    5: tf.errors.ResourceExhaustedError,
    6: tf.errors.FailedPreconditionError,
    7: tf.errors.UnavailableError,
}
# What TensorFlow turns into InvalidArgumentError and ResourceExhaustedError; of all else it makes UnknownError.
_IN_GRAPH = {1: ValueError, 2: ValueError, 5: MemoryError}


_order = []  # the variable that all ordered calls use, as soon as there is a graph
_order_lock = threading.Lock()
_told = None  # the last error of Deft


def _note(error):
    """A graph passes the text of an error on and nothing else; cause_of() finds the rest here."""
    global _told
    _told = DeftError(error.kind, str(error))  # without the frames of the first one


def cause_of(error):
    """The DeftError behind an exception of TensorFlow, or None."""
    if isinstance(error, DeftError):
        return error
    return _told if _told is not None and str(_told) in str(error) else None


def tensorflow_errors(function):
    """`function`, whose DeftError becomes TensorFlow's exception of that kind, with the same text."""

    @functools.wraps(function)
    def wrapped(*arguments, **named):
        try:
            return function(*arguments, **named)
        except DeftError as error:
            _note(error)
            raise _ERRORS.get(error.kind, tf.errors.InternalError)(None, None, str(error)) from error

    return wrapped


def _graph_errors(function):
    def wrapped(*arrays):
        try:
            return function(*arrays)
        except DeftError as error:
            _note(error)
            raise _IN_GRAPH.get(error.kind, RuntimeError)(str(error)) from error

    return wrapped


def _order_variable():
    with _order_lock:
        if not _order:
            with tf.init_scope(), tf.device("CPU:0"):
                _order.append(tf.Variable(0, trainable=False, dtype=tf.int32, name="deft_order"))
        return _order[0]


_CONTROL_FLOW = (
    control_flow_v2_func_graphs.CondBranchFuncGraph,
    control_flow_v2_func_graphs.WhileCondFuncGraph,
    control_flow_v2_func_graphs.WhileBodyFuncGraph,
)


def _order_in(graph):
    """The handle of the order variable as operations of `graph` may use it.

    By itself TensorFlow takes it from eager mode, which in the gradient of a branch or a loop is an error. So a branch
    or a loop takes it from the graph around, and the gradient of a function from whoever calls it: that may be the
    gradient of a branch.
    """
    if isinstance(graph, _CONTROL_FLOW):
        with graph.outer_graph.as_default():
            return graph.outer_graph.capture(_order_in(graph.outer_graph))
    if _is_gradient_of_function(graph):
        with tf.control_dependencies(None):
            of_caller = functools.partial(_order_of_caller, weakref.ref(graph))
            return graph.function_captures._capture_by_ref(graph, of_caller, key="deft_order")
    return _order_variable().handle


def _is_gradient_of_function(graph):
    """Whether TensorFlow makes this graph once for all calls of a function within graphs."""
    function = getattr(graph, "outer_graph", None)
    return isinstance(function, FuncGraph) and graph.name.startswith(f"__backward_{function.name}_")


def _order_of_caller(gradient):
    """Is called for each call of a gradient, and once when its graph is made, to which `gradient` refers."""
    graph = tf.compat.v1.get_default_graph()
    return _order_variable().handle if graph is gradient() else _order_in(graph)


def _in_order(call):
    """What call() gives, tensors of a stateful operation that comes behind all earlier ones and before all later ones.

    By itself TensorFlow orders stateful operations within a function. A nested function that uses a variable of its own
    is ordered by that variable alone.
    """
    if not tf.compat.v1.executing_eagerly_outside_functions():
        return call()
    order = _order_in(tf.compat.v1.get_default_graph())
    with tf.control_dependencies([tf.raw_ops.ReadVariableOp(resource=order, dtype=tf.int32)]):
        results = call()
    with tf.control_dependencies(results):
        tf.raw_ops.AssignAddVariableOp(resource=order, value=0)  # a write, for which the next read waits
    return results


@tf.autograph.experimental.do_not_convert
def on_host(function, tensors, dtypes, shapes, ordered=True):
    """`function` of the tensors' values, as arrays; it gives a list of arrays of these dtypes.

    `shapes`: the known dimensions of the results when a graph is made. If a call is not `ordered`, a graph runs it when
    its inputs are there, and only if its results are used. One of its inputs must come from an ordered call: otherwise
    TensorFlow may find that the inputs never change, and call once for all steps.
    """
    if tf.executing_eagerly():
        arrays = tensorflow_errors(function)(*[tensor.numpy() for tensor in tensors])
        return [tf.convert_to_tensor(array, dtype) for array, dtype in zip(arrays, dtypes)]
    if control_flow_util.GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph()):
        raise ValueError(
            "XLA cannot compile calls of Python, by which tensors leave the graph: say jit_compile=False in compile() "
            "of the model, or in tf.function"
        )
    arguments = (_graph_errors(function), tensors, list(dtypes))
    if ordered:
        results = _in_order(functools.partial(tf.numpy_function, *arguments, stateful=True))
    else:
        results = tf.numpy_function(*arguments, stateful=False)
    for result, shape in zip(results, shapes):
        result.set_shape(shape)
    return list(results)

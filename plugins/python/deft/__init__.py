"""Deft for Python: a worker's session with the daemon of its node, over libdeft's C interface.

This package knows no framework; deft.torch, deft.tensorflow and deft.mxnet build on it.

    import deft

    with deft.open() as session:                                    # rank and size from the launcher
        group = session.declare("sgd", [deft.Tensor("w", deft.FLOAT32, (10, 10), 0)])
        address = group.data(0)                                     # write the gradient there
        group.ready(0, 1, step=0)
        group.wait(0, 1, step=0)                                    # now it holds the sum over all workers
"""

from deft._native import DeftError, PolicyTraits, option, policy_traits, version
from deft.codec import Codec
from deft.passes import optimization_pass
from deft.session import (
    BACKWARD,
    BFLOAT16,
    FLOAT16,
    FLOAT32,
    FLOAT64,
    FORWARD,
    INT8,
    INT32,
    INT64,
    MAX,
    MIN,
    SUM,
    UINT8,
    Group,
    Operation,
    Session,
    Statistics,
    Tensor,
    open,
)
from deft.tracing import trace, trying

HorovodInternalError = DeftError  # the name that scripts of Horovod catch
__version__ = version()

__all__ = [
    "BACKWARD",
    "BFLOAT16",
    "FLOAT16",
    "FLOAT32",
    "FLOAT64",
    "FORWARD",
    "INT8",
    "INT32",
    "INT64",
    "MAX",
    "MIN",
    "SUM",
    "UINT8",
    "Codec",
    "DeftError",
    "Group",
    "HorovodInternalError",
    "Operation",
    "PolicyTraits",
    "Session",
    "Statistics",
    "Tensor",
    "open",
    "optimization_pass",
    "option",
    "policy_traits",
    "trace",
    "trying",
]

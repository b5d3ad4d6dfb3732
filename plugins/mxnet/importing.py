"""Imports MXNet, with a readable error for a version of numpy that MXNet 1.9.1 does not know.

MXNet's last release uses names that numpy 1.24 took away.
"""

import importlib.metadata
import os

import numpy as np

_NUMPY = "numpy==1.23.5"
# Otherwise MXNet runs up to 15 operations of a hybridized network as one: all gradients of these come at its end, and
# it begins when all their parameters are there. MXNet reads the variables at the first pass.
for _variable in ("MXNET_EXEC_BULK_EXEC_MAX_NODE_TRAIN_BWD", "MXNET_EXEC_BULK_EXEC_MAX_NODE_TRAIN_FWD"):
    os.environ.setdefault(_variable, "1")


def _import_mxnet():
    try:
        import mxnet
    except (AttributeError, ImportError) as error:
        if tuple(int(part) for part in np.__version__.split(".")[:2]) < (1, 24):
            raise
        raise ImportError(
            f"deft.mxnet: MXNet {importlib.metadata.version('mxnet')} does not work with numpy {np.__version__} "
            f"({error}). Install an older one beside it: pip install {_NUMPY}"
        ) from error
    return mxnet


mxnet = _import_mxnet()


def check_engine():
    """The engine must run operations that end later, and NaiveEngine runs one after the other."""
    if os.environ.get("MXNET_ENGINE_TYPE") == "NaiveEngine":
        raise ValueError("deft.mxnet needs MXNet's threaded engine: unset MXNET_ENGINE_TYPE (it is NaiveEngine)")

"""For Horovod's own tests: `import horovod.torch` then means deft.torch, and so on for TensorFlow and MXNet.

It also brings back what these tests use and Python and PyTorch have changed since.
"""

import inspect
import sys
import types


def install(framework):
    """`framework` is torch, tensorflow or mxnet."""
    if not hasattr(inspect, "getargspec"):
        inspect.getargspec = inspect.getfullargspec
    modules = {"torch": _torch_modules, "tensorflow": _tensorflow_modules, "mxnet": _mxnet_modules}[framework]()
    horovod = types.ModuleType("horovod")
    horovod.__path__ = []
    sys.modules["horovod"] = horovod
    for name, module in modules.items():
        sys.modules[f"horovod.{name}"] = module
        if "." not in name:
            setattr(horovod, name, module)


def _torch_modules():
    import deft.torch as hvd
    import torch

    if hasattr(torch.optim, "Muon"):  # it takes matrices alone; the tests build every optimizer of torch.optim
        torch.optim.Muon.__module__ = "muon"
    return {"torch": hvd, "torch.mpi_ops": hvd, "torch.compression": hvd}


def _tensorflow_modules():
    import deft.tensorflow as hvd
    import deft.tensorflow.keras as keras
    import tensorflow as tf

    _keras2_names(tf.keras)
    util = types.ModuleType("horovod.tensorflow.util")
    util._executing_eagerly = hvd._executing_eagerly = tf.executing_eagerly
    util._has_eager = True
    hvd.util = util
    return {"tensorflow": hvd, "tensorflow.util": util, "tensorflow.keras": keras, "keras": keras}


def _keras2_names(keras):
    """What the tests call as in Keras 2. Models were not compiled by XLA there."""
    compile_model, rmsprop = keras.Model.compile, keras.optimizers.RMSprop

    def compile_without_xla(model, *arguments, experimental_run_tf_function=None, **named):
        compile_model(model, *arguments, jit_compile=False, **named)

    keras.Model.compile = compile_without_xla
    keras.optimizers.RMSprop = lambda lr: rmsprop(learning_rate=lr)
    keras.losses.mean_squared_error = keras.losses.MSE


def _mxnet_modules():
    import deft.mxnet as hvd

    return {"mxnet": hvd, "mxnet.mpi_ops": hvd}

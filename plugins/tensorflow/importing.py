"""Says what to install if TensorFlow or Keras is too old. The package imports this module first."""

import importlib


def _import(package, oldest):
    """ImportError if the package is older than `oldest`: later it would fail in other words."""
    module = importlib.import_module(package)
    if tuple(int(part) for part in module.__version__.split(".")[:2]) < oldest:
        raise ImportError(
            f"deft.tensorflow needs TensorFlow 2.16 or newer and Keras 3; this is {package} {module.__version__}. "
            "Install both: pip install 'tensorflow>=2.16' 'keras>=3'"
        )
    return module


keras = _import("keras", (3, 0))
_import("tensorflow", (2, 16))


def check_backend():
    """Raises unless Keras runs on TensorFlow."""
    if keras.backend.backend() != "tensorflow":
        raise ValueError(
            f"deft.tensorflow trains with Keras on TensorFlow, and this is Keras on {keras.backend.backend()}: set "
            "KERAS_BACKEND=tensorflow. For Keras on torch there is deft.torch.average_gradients()"
        )

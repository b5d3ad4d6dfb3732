"""Arguments have Horovod's names and order; scripts give them by position and by name. Versions that are too old."""

import inspect
import os
import subprocess
import sys

import deft.tensorflow as hvd
import deft.tensorflow.keras as hvd_keras
import keras
import numpy as np
import pytest
import tensorflow as tf
from deft import horovod
from deft.tensorflow.averaging import _scaled_rows
from launching import PACKAGE

_REDUCE = "average device_dense device_sparse compression op prescale_factor postscale_factor"
ARGUMENTS = {
    "allreduce": f"tensor {_REDUCE} name process_set ignore_name_scope",
    "grouped_allreduce": f"tensors {_REDUCE} process_set ignore_name_scope",
    "allgather": "tensor name ignore_name_scope process_set",
    "grouped_allgather": "tensors name ignore_name_scope process_set",
    "broadcast": "tensor root_rank name ignore_name_scope process_set",
    "broadcast_": "variables root_rank name process_set",
    "alltoall": "tensor splits name ignore_name_scope process_set",
    "reducescatter": "tensor device_dense compression op name process_set ignore_name_scope prescale_factor "
    "postscale_factor",
    "grouped_reducescatter": "tensors device_dense compression op process_set prescale_factor postscale_factor",
    "broadcast_variables": "variables root_rank process_set inplace",
    "broadcast_global_variables": "root_rank",
    "broadcast_object": "obj root_rank session name process_set",
    "broadcast_object_fn": "root_rank session name process_set",
    "allgather_object": "obj session name process_set",
    "size_op": "process_set_id name",
    "process_set_included_op": "process_set_id name",
    "DistributedOptimizer": "optimizer name use_locking device_dense device_sparse compression sparse_as_dense "
    "backward_passes_per_step op gradient_predivide_factor average_aggregated_gradients num_groups groups process_set "
    "scale_local_gradients",
    "DistributedGradientTape": "gradtape device_dense device_sparse compression sparse_as_dense op "
    "gradient_predivide_factor num_groups groups process_set scale_local_gradients",
    "PartialDistributedGradientTape": "gradtape device_dense device_sparse compression sparse_as_dense op "
    "gradient_predivide_factor num_groups groups process_set local_layers scale_local_gradients",
}
ARGUMENTS_OF_KERAS = {
    "allreduce": "value name average prescale_factor postscale_factor op compression",
    "allgather": "value name",
    "broadcast": "value root_rank name",
    "reducescatter": "value name op",
    "load_model": "filepath custom_optimizers custom_objects compression legacy_opts",
    "DistributedOptimizer": "optimizer name device_dense device_sparse compression sparse_as_dense "
    "gradient_predivide_factor op backward_passes_per_step average_aggregated_gradients num_groups groups process_set "
    "scale_local_gradients",
    "PartialDistributedOptimizer": "optimizer name device_dense device_sparse compression sparse_as_dense "
    "gradient_predivide_factor op groups process_set local_layers scale_local_gradients",
}


def test_arguments_have_horovods_names_and_order():
    for package, table in ((hvd, ARGUMENTS), (hvd_keras, ARGUMENTS_OF_KERAS)):
        for name, arguments in table.items():
            expected = arguments.split()
            found = list(inspect.signature(getattr(package, name)).parameters)
            assert found[: len(expected)] == expected, f"{package.__name__}.{name}"


def test_names_of_all_frameworks_mean_the_same():
    for package in (hvd, hvd_keras):
        for name in horovod.__all__:
            assert getattr(package, name) is getattr(horovod, name) and name in package.__all__, name
        assert all(hasattr(package, name) for name in package.__all__)


@pytest.mark.parametrize(
    ("versions", "named"),
    [({"keras": "2.15.0"}, "keras 2.15.0"), ({"keras": "3.0.5", "tensorflow": "2.15.1"}, "tensorflow 2.15.1")],
)
def test_an_old_version_is_an_error_that_says_what_to_install(tmp_path, versions, named):
    for package, version in versions.items():
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").write_text(f"__version__ = {version!r}\n")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (tmp_path, PACKAGE)))}
    words = [sys.executable, "-c", "import deft.tensorflow"]
    said = subprocess.run(words, env=environment, capture_output=True, text=True).stderr
    assert f"ImportError: deft.tensorflow needs TensorFlow 2.16 or newer and Keras 3; this is {named}. " in said, said
    assert "pip install 'tensorflow>=2.16' 'keras>=3'" in said


def test_options_that_would_train_something_else_are_refused():
    for passes in (0, -1):
        with pytest.raises(ValueError, match=f"backward_passes_per_step is {passes}"):
            hvd.DistributedOptimizer(keras.optimizers.SGD(), backward_passes_per_step=passes)
    layer = keras.layers.Dense(1, name="own")
    with pytest.raises(ValueError, match="local layer 'own' has no variables yet"):
        hvd_keras.PartialDistributedOptimizer(keras.optimizers.SGD(), local_layers=layer)
    with pytest.raises(ValueError, match="local layer 'own' has no variables yet"):
        hvd.PartialDistributedGradientTape(tf.GradientTape(), local_layers=[layer])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_factors_of_rows_are_not_rounded_to_16_bits(dtype):
    values = tf.cast(tf.linspace(0.1, 60.0, 2000), dtype)
    exact = tf.cast(tf.cast(values, tf.float32) * np.float32(1 / 3), dtype)
    found = _scaled_rows(values, 1 / 3)
    assert found.dtype == values.dtype
    np.testing.assert_array_equal(tf.cast(found, tf.float32), tf.cast(exact, tf.float32))
    assert tf.reduce_any(exact != values * tf.cast(1 / 3, dtype))


def test_what_is_no_keras_on_tensorflow_is_refused(monkeypatch):
    with pytest.raises(ValueError, match=r"builtins\.object is no optimizer of Keras 3.*TF_USE_LEGACY_KERAS"):
        hvd.DistributedOptimizer(object())
    monkeypatch.setattr(keras.backend, "backend", lambda: "torch")
    with pytest.raises(ValueError, match="Keras on torch: set KERAS_BACKEND=tensorflow"):
        hvd.DistributedOptimizer(keras.optimizers.SGD())

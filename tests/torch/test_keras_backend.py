"""model.fit of Keras 3 on PyTorch: one line averages the gradients. Keras comes from TensorFlow's environment."""

import os
import sys

import deft.torch as hvd
import pytest
import torch
from launching import ROOT
from small_models import assert_close, assert_same_everywhere

EPOCHS, STEPS, ROWS = 3, 4, 8
ENVIRONMENT = ROOT / ".venv-tensorflow/lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
KERAS = [
    "keras",
    "absl",
    "h5py",
    "h5py.libs",
    "optree",
    "rich",
    "namex",
    "ml_dtypes",
    "pygments",
    "markdown_it",
    "mdurl",
]


def make_model(keras):
    first, last = (keras.initializers.GlorotUniform(seed) for seed in (1, 2))
    layers = [keras.layers.Input((6,)), keras.layers.Dense(24, "tanh", kernel_initializer=first)]
    layers += [keras.layers.BatchNormalization(), keras.layers.Dense(1, kernel_initializer=last)]
    model = keras.Sequential(layers)
    model.layers[1].trainable = False  # its statistics would be of a rank's own rows
    model.compile(keras.optimizers.Adam(0.01), "mse")
    return model


def fit(model, x, y, rows):
    history = model.fit(x.numpy(), y.numpy(), batch_size=rows, epochs=EPOCHS, shuffle=False, verbose=0).history
    return history["loss"]


def weights_of(model):
    return {str(place): weight.value.detach().clone() for place, weight in enumerate(model.weights)}


def fit_on_torch(site):
    os.environ["KERAS_BACKEND"] = "torch"
    sys.path.append(site)
    import keras

    for _ in range(9 * hvd.rank()):
        keras.layers.Dense(1)  # Keras counts it, and so names later layers otherwise than on rank 0
    x = torch.randn(STEPS * ROWS, 6, generator=torch.Generator().manual_seed(3))
    own = x.reshape(STEPS, hvd.size(), -1, 6)[:, hvd.rank()].reshape(-1, 6)
    for options in ({}, {"compression": hvd.Compression.fp16}, {"op": hvd.Sum}):
        model, alone = make_model(keras), make_model(keras)
        with torch.no_grad():
            for param in model.parameters():
                param.add_(hvd.rank())
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        assert hvd.average_gradients(model, **options) is model
        losses = fit(model, own, own.sum(1).sin(), ROWS // hvd.size())
        assert losses[-1] < losses[0]
        state = weights_of(model)
        assert_same_everywhere(state)
        if not options:
            fit(alone, x, x.sum(1).sin(), ROWS)
            assert_close(state, weights_of(alone), rtol=1e-3, atol=1e-4)
    unfreeze(make_model(keras), own, own.sum(1).sin(), keras)
    return True


def unfreeze(model, x, y, keras):
    """A layer that is unfrozen later is an error until average_gradients() has seen it."""
    model.layers[0].trainable = False
    hvd.average_gradients(model)
    for step in range(2):
        model.compile(keras.optimizers.SGD(0.01), "mse")
        if step == 0:
            fit(model, x, y, ROWS)
            model.layers[0].trainable = True
    with pytest.raises(RuntimeError, match="average_gradients"):
        fit(model, x, y, ROWS)
    hvd.average_gradients(model)
    kernel = model.layers[0].kernel.value
    before = kernel.detach().clone()
    fit(model, x, y, ROWS)
    assert not torch.equal(kernel, before)
    assert_same_everywhere(weights_of(model))


def refusals():
    model = torch.nn.Linear(2, 1)
    with pytest.raises(ValueError, match="offers Average and Sum"):
        hvd.average_gradients(model, op=hvd.Adasum)
    with pytest.raises(ValueError, match="set DEFT_MAX_STALENESS_STEPS=0"):
        hvd.average_gradients(model)
    return True


def test_keras_on_pytorch(start, tmp_path):
    if not ENVIRONMENT.exists():
        pytest.skip("TensorFlow's environment, which has Keras, is not installed")
    for name in KERAS:  # without TensorFlow, which Keras would import, too
        (tmp_path / name).symlink_to(ENVIRONMENT / name)
    cluster = start(2)
    assert all(cluster.run(fit_on_torch, str(tmp_path)))
    assert all(cluster.run(refusals, policy="knapsack"))

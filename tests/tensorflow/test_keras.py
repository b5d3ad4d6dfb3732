"""model.fit, Keras's optimizers and their files, callbacks, and loss scaling."""

import copy
import functools

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow_jobs import small_model, weights_of
from training_checks import assert_close, assert_same_everywhere, batches, own_share, share_off

EPOCHS, STEPS = 3, 4


def data(share=lambda *arrays: arrays):
    """Each batch of the whole is what the ranks have in their batches."""
    parts = [share(x, y) for x, y in batches(STEPS)]
    return [np.concatenate(arrays) for arrays in zip(*parts)]


def fit(model, x, y, rows, callbacks=(), **options):
    return model.fit(
        x, y, batch_size=rows, epochs=EPOCHS, shuffle=False, verbose=0, callbacks=list(callbacks), **options
    ).history


def fits_as_one_process():
    import deft.tensorflow.keras as hvd

    reference = small_model()
    reference.compile(keras.optimizers.Adam(0.01), "mse", metrics=["mae"])
    expected = fit(reference, *data(), 8)

    model = small_model()
    if hvd.rank() != 0:
        for weight in model.weights:
            weight.assign(weight + 1.0)
    adam = keras.optimizers.Adam(0.01)
    config = adam.get_config()
    optimizer = hvd.DistributedOptimizer(adam)
    assert optimizer is adam and type(optimizer) is keras.optimizers.Adam and optimizer.get_config() == config
    model.compile(optimizer, "mse", metrics=["mae"])
    callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0), hvd.callbacks.MetricAverageCallback()]
    history = fit(model, *data(own_share), 4, callbacks, validation_data=data(own_share))
    assert_same_everywhere(weights_of(model))
    assert_close(weights_of(model), weights_of(reference), 1e-4)
    for name in ("loss", "mae"):
        np.testing.assert_allclose(history[name], expected[name], rtol=1e-3)
    assert len(set(hvd.allgather_object(str(history)))) == 1
    return model


def saves_and_loads(model, folder):
    """The file is that of a plain model; load_model makes the optimizer distributed again, with its state."""
    import deft.tensorflow.keras as hvd

    path = f"{folder}/rank{hvd.rank()}.keras"
    model.save(path)
    plain = keras.models.load_model(path)
    assert type(plain.optimizer) is keras.optimizers.Adam and "apply" not in vars(plain.optimizer)
    loaded = hvd.load_model(path)
    assert int(loaded.optimizer.iterations) == EPOCHS * STEPS
    for one in (model, loaded):
        fit(one, *data(own_share), 4)
        assert_same_everywhere(weights_of(one))
    assert_close(weights_of(loaded), weights_of(model), 1e-6)
    copied = copy.deepcopy(loaded.optimizer)  # Keras makes it anew from its configuration
    assert type(copied) is keras.optimizers.Adam and "apply" not in vars(copied)
    with pytest.raises(ValueError, match="legacy_opts"):
        hvd.load_model(path, legacy_opts=True)
    with pytest.raises(ValueError, match="DistributedOptimizer already"):
        hvd.DistributedOptimizer(loaded.optimizer)


def loads_what_adds_up(path):
    """load_model with the options of the training makes the updates that the training made."""
    import deft.tensorflow.keras as hvd

    model = small_model()
    model.compile(
        hvd.DistributedOptimizer(keras.optimizers.SGD(0.05), backward_passes_per_step=2), "mse", jit_compile=False
    )
    fit(model, *data(own_share), 4)
    path = f"{path}.rank{hvd.rank()}.keras"
    model.save(path)
    with pytest.raises(ValueError, match=r"accumulation_steps=2.*give load_model backward_passes_per_step=2"):
        hvd.load_model(path)
    loaded = hvd.load_model(path, backward_passes_per_step=2)
    mean = hvd.load_model(path, average_aggregated_gradients=True)
    before = weights_of(model)
    for one in (model, loaded, mean):
        fit(one, *data(own_share), 4)
        assert_same_everywhere(weights_of(one))
    assert_close(weights_of(loaded), weights_of(model), 1e-6)
    assert share_off(weights_of(mean), weights_of(model), before) > 0.2


class OwnOptimizer(keras.optimizers.SGD):
    """Of a script, and not registered with Keras."""


def values_and_own_optimizers(path):
    """Collectives with the arguments of horovod.tensorflow.keras, a file of an optimizer that Keras does not know."""
    import deft.tensorflow.keras as hvd

    rank = hvd.rank()
    np.testing.assert_allclose(hvd.allreduce(tf.constant([1.0 + rank]), "value", False), [3.0])
    np.testing.assert_allclose(hvd.allgather(tf.constant([1.0 + rank]), "rows"), [1.0, 2.0])
    np.testing.assert_allclose(hvd.broadcast(tf.constant([1.0 + rank]), 1, "root"), [2.0])
    np.testing.assert_allclose(hvd.reducescatter(tf.constant([1.0, 3.0]), "share", hvd.Sum), [[2.0], [6.0]][rank])
    model = small_model()
    model.compile(hvd.DistributedOptimizer(OwnOptimizer(0.1)), "mse", jit_compile=False)
    fit(model, *data(own_share), 4)
    if rank == 0:
        model.save(path)
    hvd.allreduce(0.0)  # the file is there
    loaded = hvd.load_model(path, custom_optimizers=[OwnOptimizer])
    assert type(loaded.optimizer) is OwnOptimizer and "apply" in vars(loaded.optimizer)
    for one, kept in ((model, False), (loaded, True)):
        one.layers[0].bias.assign(tf.fill(one.layers[0].bias.shape, float(rank)))
        local = one.layers[0].bias if kept else None
        callback = hvd.callbacks.BroadcastGlobalVariablesCallback(1, local_variables=local)
        callback.set_model(one)
        callback.on_train_begin()
        np.testing.assert_array_equal(one.layers[0].bias, float(rank) if kept else 1.0)


def rates():
    import deft.tensorflow.keras as hvd

    def rates_of(callback):
        seen = []
        model = small_model()
        model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(1.0)), "mse", jit_compile=False)
        note = keras.callbacks.LambdaCallback(
            on_train_batch_end=lambda batch, logs=None: seen.append(float(model.optimizer.learning_rate))
        )
        history = fit(model, *data(own_share), 4, [callback, note])
        np.testing.assert_allclose(history["lr"], seen[STEPS - 1 :: STEPS])
        return seen

    warm = rates_of(hvd.callbacks.LearningRateWarmupCallback(0.2, warmup_epochs=2, verbose=1))
    np.testing.assert_allclose(warm, [*np.linspace(0.1, 0.2, 9)[1:], *[0.2] * STEPS], rtol=1e-6)
    stairs = rates_of(hvd.callbacks.LearningRateScheduleCallback(0.2, lambda epoch: 0.5**epoch, start_epoch=1))
    np.testing.assert_allclose(stairs, [1.0] * 4 + [0.1] * 4 + [0.05] * 4, rtol=1e-6)
    smooth = rates_of(hvd.callbacks.LearningRateScheduleCallback(0.2, lambda epoch: 1 / (1 + epoch), staircase=False))
    np.testing.assert_allclose(smooth, 0.2 / (1 + np.arange(12) / 4), rtol=1e-6)


def scaled_losses():
    """An infinity on one rank: all ranks skip the step and halve the scale."""
    import deft.tensorflow.keras as hvd

    for compiled in (False, True):
        model = small_model()
        scaler = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1), initial_scale=8.0)
        optimizer = hvd.DistributedOptimizer(scaler)

        def step(x, factor, model=model, optimizer=optimizer):
            with tf.GradientTape() as tape:
                loss = optimizer.scale_loss(tf.reduce_mean(tf.square(model(x))) * factor)
            variables = model.trainable_variables
            optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))

        run = tf.function(step) if compiled else step
        x = tf.ones((2, 6))
        run(x, tf.constant(1.0))
        before = weights_of(model)
        run(x, tf.constant(np.inf if hvd.rank() == 1 else 1.0, tf.float32))
        assert_close(weights_of(model), before, 0.0)
        assert float(scaler.dynamic_scale) == 4.0
        run(x, tf.constant(1.0))
        assert any((a != b).any() for a, b in zip(weights_of(model), before))
        assert_same_everywhere(weights_of(model))

    with pytest.raises(ValueError, match="Wrap a LossScaleOptimizer from outside"):
        apply_inside_a_scaler(model, hvd)
    apply_in_a_branch_of_the_script(model, hvd)


def apply_inside_a_scaler(model, hvd):
    wrong = keras.optimizers.LossScaleOptimizer(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)))
    wrong.build(model.trainable_variables)
    gradients = [tf.ones(v.shape) for v in model.trainable_variables]
    tf.function(lambda: wrong.apply(gradients, model.trainable_variables))()


def apply_in_a_branch_of_the_script(model, hvd):
    """All ranks enter the branch, and the function inside it."""
    optimizer, variables = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0)), model.trainable_variables
    optimizer.build(variables)
    before, gradients = weights_of(model), [tf.fill(v.shape, 1.0 + hvd.rank()) for v in variables]
    step = tf.function(lambda: optimizer.apply(gradients, variables) or 0)
    tf.function(lambda go: tf.cond(go, step, lambda: 0))(tf.constant(True))
    assert_close(weights_of(model), [weight - 1.5 for weight in before])


def fits_in_mixed_precision():
    """The user wraps the loss scaler, so Keras adds none."""
    import deft.tensorflow.keras as hvd

    model = small_model("mixed_float16")
    scaler = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.05))
    model.compile(hvd.DistributedOptimizer(scaler), "mse")
    history = fit(model, *data(own_share), 4, [hvd.callbacks.BroadcastGlobalVariablesCallback(0)])
    assert model.optimizer is scaler and history["loss"][-1] < history["loss"][0]
    assert_same_everywhere(weights_of(model))


def weights_after_fit(model, optimizer, arrays, rows, **options):
    """Without Deft if `optimizer` is no distributed one."""
    import deft.tensorflow.keras as hvd

    model.compile(optimizer, "mse", jit_compile=False, **options)
    distributed = "apply" in vars(optimizer)
    fit(model, *arrays, rows, [hvd.callbacks.BroadcastGlobalVariablesCallback(0)] if distributed else [])
    weights = weights_of(model)
    if distributed:
        assert_same_everywhere(weights)
    return weights


def fits_several_steps_an_execution():
    """Keras then calls each step in a loop and in a branch. 3 steps: the last execution has fewer batches."""
    import deft.tensorflow.keras as hvd

    expected = weights_after_fit(small_model(), keras.optimizers.SGD(0.05), data(), 8)
    for steps in (2, 3):
        optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.05))
        options = {"steps_per_execution": steps}
        assert_close(weights_after_fit(small_model(), optimizer, data(own_share), 4, **options), expected)


def loss_scales_and_what_a_codec_leaves_out():
    """topk sends a quarter of the values. What it leaves out of a step comes later, when the scale is another."""
    import deft.tensorflow.keras as hvd

    hvd.shutdown()
    hvd.init(job="scales", policy="fifo", compression="topk/ratio=0.25")
    shape = (96, 96)
    own, average = large_values(hvd.rank(), shape), (large_values(0, shape) + large_values(1, shape)) / 2
    for compiled in (False, True):
        variable = keras.Variable(np.zeros(shape, np.float32))
        scaler = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(1.0), initial_scale=8.0)
        optimizer = hvd.DistributedOptimizer(scaler)
        optimizer.build([variable])
        step = functools.partial(apply_scaled, optimizer, variable)
        run = tf.function(step) if compiled else step
        run(tf.constant(own))
        assert np.abs(-np.array(variable) - average).max() > 0.1, "topk is not in force"
        scaler.dynamic_scale.assign(2.0)
        for _ in range(11):
            run(tf.zeros(shape))
        np.testing.assert_allclose(-np.array(variable), average, atol=1e-5)


def apply_scaled(optimizer, variable, gradient):
    optimizer.apply([optimizer.scale_loss(gradient)], [variable])


def large_values(rank, shape):
    return np.random.default_rng(100 + rank).standard_normal(shape).astype(np.float32)


def fits_after_layers_of_one_rank():
    """Keras counts the layers of a process: rank 0, which has made others before, has other names for the same ones."""
    import deft.tensorflow.keras as hvd

    if hvd.rank() == 0:
        small_model()
    model = small_model()
    assert len(set(hvd.allgather_object(model.weights[0].path))) == 2
    expected = weights_after_fit(small_model(), keras.optimizers.SGD(0.05), data(), 8)
    weights = weights_after_fit(model, hvd.DistributedOptimizer(keras.optimizers.SGD(0.05)), data(own_share), 4)
    assert_close(weights, expected)
    assert_same_everywhere(weights)


def fits_with_options():
    """Passes that accumulate, gradients as halves, and both factors."""
    import deft.tensorflow.keras as hvd

    slow = [keras.optimizers.SGD(0.05, momentum=0.9, gradient_accumulation_steps=2) for _ in range(2)]
    expected = weights_after_fit(small_model(), slow[0], data(), 8)
    options = {"compression": hvd.Compression.fp16, "gradient_predivide_factor": 2.0}
    assert_close(
        weights_after_fit(small_model(), hvd.DistributedOptimizer(slow[1], **options), data(own_share), 4),
        expected,
        2e-3,
    )


@keras.saving.register_keras_serializable("deft_tests")
class RowsOfATable(keras.layers.Layer):
    """Its gradient is sparse, and one of its weights has none."""

    def build(self, _shape):
        self.table = self.add_weight(shape=(7, 2), initializer="ones", name="table")
        self.unused = self.add_weight(shape=(3,), initializer="ones", name="unused")

    def call(self, ids):
        return tf.reduce_sum(tf.gather(tf.convert_to_tensor(self.table), ids), axis=1)


def fits_with_sparse_gradients():
    import deft.tensorflow.keras as hvd
    from deft.tensorflow import averaging

    rng = np.random.default_rng(2)
    ids, targets = rng.integers(7, size=(32, 3)), rng.standard_normal((32, 1)).astype(np.float32)

    def model():
        keras.utils.set_random_seed(3)
        return keras.Sequential([keras.layers.Input((3,), dtype="int32"), RowsOfATable(), keras.layers.Dense(1)])

    def own(array):
        return array.reshape(STEPS, 4, hvd.size(), -1)[:, :, hvd.rank()].reshape(-1, array.shape[1])

    expected = weights_after_fit(model(), keras.optimizers.SGD(0.05), (ids, targets), 8)
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.05))
    weights = weights_after_fit(model(), optimizer, (own(ids), own(targets)), 4)
    assert_close(weights, expected)
    assert averaging._of_session(averaging._gathers, hvd.global_process_set).all(), "no gradient was sparse"


def fits_encoded_without_delays():
    """The policy and the codec of the daemon."""
    import deft.tensorflow.keras as hvd

    hvd.shutdown()
    hvd.init(job="encoded", policy="knapsack", compression="int8")
    expected = weights_after_fit(small_model(units=96), keras.optimizers.SGD(0.05), data(), 8)
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.05))
    weights = weights_after_fit(small_model(units=96), optimizer, data(own_share), 4)
    off = share_off(weights, expected, weights_of(small_model(units=96)))
    assert 1e-4 < off < 0.1, f"off by {off:.3g} of the way"


def everything(folder):
    model = fits_as_one_process()
    saves_and_loads(model, folder)
    loads_what_adds_up(f"{folder}/adds")
    values_and_own_optimizers(f"{folder}/own.keras")
    rates()
    scaled_losses()
    fits_in_mixed_precision()
    return True


def fits_in_other_ways():
    fits_after_layers_of_one_rank()
    fits_with_options()
    fits_several_steps_an_execution()
    fits_with_sparse_gradients()
    fits_encoded_without_delays()
    loss_scales_and_what_a_codec_leaves_out()
    return True


def test_keras(start, tmp_path):
    assert all(start(policy="bytescheduler").run(everything, str(tmp_path)))


def test_options_sparse_gradients_and_codecs_in_fit(start):
    assert all(start(policy="bytescheduler").run(fits_in_other_ways))

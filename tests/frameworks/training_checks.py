"""The data of small trainings, and what their results must be; for jobs of every framework."""

import hashlib

import numpy as np


def batches(steps, rows=8):
    """Batches of the whole job, the same on all ranks."""
    rng = np.random.default_rng(5)
    for _ in range(steps):
        x = rng.standard_normal((rows, 6)).astype(np.float32)
        yield x, np.sin(x.sum(axis=1, keepdims=True)).astype(np.float32)


def own_share(*arrays):
    from deft import world

    return [array[world.rank() :: world.size()] for array in arrays]


def assert_same_everywhere(arrays):
    """Equal bits on all ranks."""
    from deft import objects

    bits = hashlib.sha256(b"".join(np.ascontiguousarray(array).tobytes() for array in arrays)).hexdigest()
    everywhere = objects.allgather_object(bits)
    assert len(set(everywhere)) == 1, f"the ranks have different bits: {everywhere}"


def assert_close(arrays, expected, tolerance=1e-5):
    for array, wanted in zip(arrays, expected, strict=True):
        np.testing.assert_allclose(array, wanted, rtol=10 * tolerance, atol=tolerance)

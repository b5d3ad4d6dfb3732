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


def share_off(weights, expected, start):
    """How far they are from what was expected, as a share of the way from the start."""
    way = sum(np.linalg.norm(b.astype(float) - a) for a, b in zip(start, expected))
    return sum(np.linalg.norm(a.astype(float) - b.astype(float)) for a, b in zip(weights, expected)) / way


def large_gradient(rank):
    """A rank's gradient of a matrix that is large enough to be encoded, also if it travels as float16."""
    return np.random.default_rng(100 + rank).standard_normal((128, 128)).astype(np.float32)


def sum_of_halves(before=1.0):
    """The sum of large_gradient() of two ranks that travel as float16, and that no codec has rounded once more.

    before: what gradients are multiplied by before the sum."""
    one, other = ((large_gradient(rank) * np.float32(before)).astype(np.float16) for rank in range(2))
    return (one + other).astype(np.float32)

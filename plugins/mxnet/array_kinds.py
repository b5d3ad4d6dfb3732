"""MXNet's two kinds of arrays: those of mx.nd, and those of mx.np, which networks have after npx.set_np().

They lie in the same kind of memory, and the engine knows no difference. Deft's operations work on those of mx.nd.
"""

from .importing import mxnet as mx


def classic(array):
    """An array of mx.nd with the memory of `array`: itself if it is one."""
    same = array.as_nd_ndarray()
    return same if array.shape else same.reshape((1,))  # mx.nd has no scalars


def empty_like(array):
    """A new array of the same kind, shape, dtype and device."""
    kind = mx.np if isinstance(array, mx.np.ndarray) else mx.nd
    return kind.empty(array.shape, dtype=array.dtype, ctx=array.context)


def of_kind(array, values):
    """numpy's `values` as an array of the kind and on the device of `array`."""
    kind = mx.np if isinstance(array, mx.np.ndarray) else mx.nd
    return kind.array(values, dtype=values.dtype, ctx=array.context)

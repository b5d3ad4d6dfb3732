"""How TensorFlow's dtypes are named by Deft."""

import deft

import tensorflow as tf

TO_DEFT = {
    tf.float32: deft.FLOAT32,
    tf.float64: deft.FLOAT64,
    tf.float16: deft.FLOAT16,
    tf.bfloat16: deft.BFLOAT16,
    tf.int32: deft.INT32,
    tf.int64: deft.INT64,
    tf.uint8: deft.UINT8,
    tf.int8: deft.INT8,
}
HALVES = (tf.float16, tf.bfloat16)


def reducible(dtype, what):
    """Deft's number of a dtype that can be summed; an error that names `what` for the others."""
    try:
        return TO_DEFT[tf.as_dtype(dtype)]
    except KeyError:
        known = ", ".join(dtype.name for dtype in TO_DEFT)
        raise ValueError(
            f"{what} is {tf.as_dtype(dtype).name}, which cannot be reduced; convert it to one of {known}"
        ) from None

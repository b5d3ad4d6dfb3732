"""Compression of tensors on the wire: none, a float16 copy, or a codec of the daemons (gradients only).

    wire, context = Compression.fp16.compress(tensor)
    tensor = Compression.fp16.decompress(wire, context)

These compressors serve all frameworks. Arrays that have no astype() need a cast:

    class FP16Compressor(compression.FP16Compressor):
        cast = staticmethod(tf.cast)
"""

import numpy as np

from deft.codec import Codecs

_FLOATS = ("float32", "float64")


def dtype_name(dtype):
    """The name that numpy, PyTorch and TensorFlow have in common, such as float32."""
    name = getattr(dtype, "name", None) or getattr(dtype, "__name__", None) or str(dtype)
    return name.removeprefix("torch.")


class NoneCompressor:
    """Sends tensors as they are."""

    codec = ""  # of gradients on the network, see deft/codec.py: as the option `compression` says

    @staticmethod
    def cast(tensor, dtype):
        """`dtype` is a name, or the dtype of a tensor."""
        return tensor.astype(dtype)

    @staticmethod
    def wire_name(name):
        """The name of the dtype that travels for a tensor of the dtype `name`."""
        return name

    @classmethod
    def wire_dtype(cls, dtype):
        """The same for numpy's dtypes."""
        own = np.dtype(dtype)
        name = cls.wire_name(own.name)
        return own if name == own.name else np.dtype(name)

    @classmethod
    def compress(cls, tensor):
        """(what travels, what decompress() needs)."""
        own = dtype_name(tensor.dtype)
        name = cls.wire_name(own)
        return (tensor, None) if name == own else (cls.cast(tensor, name), tensor.dtype)

    @classmethod
    def decompress(cls, tensor, context):
        return tensor if context is None else cls.cast(tensor, context)


class FP16Compressor(NoneCompressor):
    """Sends float32 and float64 tensors as float16: half the bytes, 11 bits of precision, overflow above 65504."""

    codec = "none"  # a codec would round once more what whoever chose this has rounded

    @staticmethod
    def wire_name(name):
        return "float16" if name in _FLOATS else name


class Compression(Codecs):
    """For `compression=`. The first two are Horovod's; the codecs are for gradients of a trainer, tape or optimizer."""

    none = NoneCompressor  # as the option `compression` says
    fp16 = FP16Compressor

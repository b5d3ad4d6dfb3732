"""The compressors of deft.compression for PyTorch's tensors."""

from deft import compression
from deft.compression import dtype_name

import torch


def _cast(tensor, dtype):
    return tensor.to(getattr(torch, dtype) if isinstance(dtype, str) else dtype)


class FP16Compressor(compression.FP16Compressor):
    cast = staticmethod(_cast)


class Compression(compression.Compression):
    fp16 = FP16Compressor


def wire_dtype(compressor, dtype):
    """The dtype that travels for a tensor of `dtype`."""
    own = dtype_name(dtype)
    name = compressor.wire_name(own)
    return dtype if name == own else getattr(torch, name)

"""Compression of float32 and float64 tensors on the wire: none, or a float16 copy."""

import torch


class NoneCompressor:
    """Sends tensors as they are."""

    wire_dtype = None

    @staticmethod
    def compress(tensor):
        return tensor, None

    @staticmethod
    def decompress(tensor, context):
        return tensor


class FP16Compressor:
    """Sends float32 and float64 tensors as float16: half the bytes, 11 bits of precision, overflow above 65504."""

    wire_dtype = torch.float16

    @staticmethod
    def compress(tensor):
        if tensor.dtype in (torch.float32, torch.float64):
            return tensor.to(torch.float16), tensor.dtype
        return tensor, None

    @staticmethod
    def decompress(tensor, context):
        return tensor if context is None else tensor.to(context)


class Compression:
    none = NoneCompressor
    fp16 = FP16Compressor

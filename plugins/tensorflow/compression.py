"""The compressors of deft.compression for TensorFlow's tensors."""

from deft import compression

import tensorflow as tf


class FP16Compressor(compression.FP16Compressor):
    cast = staticmethod(tf.cast)


class Compression(compression.Compression):
    fp16 = FP16Compressor

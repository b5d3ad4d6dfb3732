"""Sums of encoded gradients over two nodes, in one process, by the daemon's own code; for any framework.

    sums = CodecSums(library, "int8", shapes, key=stable_hash("job/group"))     # codec "none": plain sums
    sums.add([gradients of node 0, gradients of node 1], generation)            # arrays in the order of the shapes

With `fused` all encoded tensors travel in one transfer, and have its owners; their codec draws no random numbers then.

The shapes are in the order of forward, which a plugin declares in the reverse order. A tensor is encoded if it has two
dimensions or more and 16 KiB or more; its bytes are a multiple of 1024 here. bench/lab/codec_sums.py is the same for
tensors of PyTorch.
"""

import ctypes

import numpy as np

NODES = 2
LARGE_BYTES, LARGE_ALIGN, SMALL_ALIGN = 16384, 1024, 64  # core/model/tensors.h, buckets.h
_FLOATS = ctypes.POINTER(ctypes.c_float)


def stable_hash(text):
    """As core/base/text.h: with it daemons draw the random numbers of a job's group."""
    value = 0xCBF29CE484222325
    for byte in text.encode():
        value = (value ^ byte) * 0x100000001B3 % 2**64
    return value


def places_of(shapes):
    """Where the tensors begin in the arena, in elements."""
    offset, places = 0, {}
    for index in reversed(range(len(shapes))):
        size = 4 * int(np.prod(shapes[index]))
        align = LARGE_ALIGN if size >= LARGE_BYTES else SMALL_ALIGN
        offset = -(-offset // align) * align
        places[index] = offset // 4
        offset += -(-size // align) * align
    return places


def _loaded(path):
    library = ctypes.CDLL(str(path))
    library.deft_emulation_open.restype = ctypes.c_void_p
    library.deft_emulation_open.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_size_t]
    library.deft_emulation_uses_feedback.argtypes = [ctypes.c_void_p]
    library.deft_emulation_sum.restype = ctypes.c_size_t
    pointers = ctypes.POINTER(_FLOATS)
    numbers = [ctypes.c_size_t, *[ctypes.c_uint64] * 3]
    library.deft_emulation_sum.argtypes = [ctypes.c_void_p, ctypes.c_size_t, pointers, pointers, _FLOATS, *numbers]
    return library


def _pointer(array):
    return array.ctypes.data_as(_FLOATS)


def _pointers(arrays):
    return (_FLOATS * len(arrays))(*map(_pointer, arrays))


class CodecSums:
    def __init__(self, library, codec, shapes, key, fused=False):
        self._key, self._encoded, self._residuals = key, {}, {}
        if codec == "none":
            return
        self._library = _loaded(library)
        error = ctypes.create_string_buffer(512)
        self._codec = self._library.deft_emulation_open(codec.encode(), error, len(error))
        if not self._codec:
            raise ValueError(error.value.decode())
        feedback = self._library.deft_emulation_uses_feedback(self._codec)
        places = places_of(shapes)
        large = [index for index in places if len(shapes[index]) > 1 and 4 * np.prod(shapes[index]) >= LARGE_BYTES]
        for transfer in [large] if fused else [[index] for index in large]:
            size = sum(int(np.prod(shapes[index])) for index in transfer)
            residuals = [np.zeros(size, np.float32) for _ in range(NODES)] if feedback else None
            self._encoded[tuple(transfer)] = (places[transfer[0]], residuals)

    def add(self, nodes, generation):
        """The sums of all tensors. `nodes`: the arrays of each node."""
        sums = [sum(of_nodes) for of_nodes in zip(*nodes)]
        for transfer, (first, residuals) in self._encoded.items():
            values = [np.concatenate([arrays[index].ravel() for index in transfer]) for arrays in nodes]
            total = self._add_encoded(values, residuals, (self._key, generation, first))
            ends = np.cumsum([sums[index].size for index in transfer])
            for index, part in zip(transfer, np.split(total, ends[:-1])):
                sums[index] = part.reshape(sums[index].shape)
        return sums

    def _add_encoded(self, values, residuals, place):
        total, kept = np.empty_like(values[0]), _pointers(residuals) if residuals else None
        if not self._library.deft_emulation_sum(
            self._codec, NODES, _pointers(values), kept, _pointer(total), total.size, *place
        ):
            raise RuntimeError("a codec could not add what it has encoded itself")
        return total

"""Sums of encoded gradients over several nodes, in one process, by the daemon's own code.

    sums = CodecSums("int8", shapes, nodes=2)      # ValueError: no such codec; shapes: of the parameters, in order
    sums.add(gradients, generation)                # gradients: a list of tensors of each node; gives the tensors' sums
    sums.wire_bytes                                # that one node has brought so far

`dtype` is that of gradients and sums: torch.float32, bfloat16 or float16. `first` is the place of the arena's first
element, which is not 0 for the last two (daemon/node/coding_map.h).

A tensor is encoded if it has two dimensions or more and 16 KiB or more (daemon/node/coding_map.h). Others are added as
they are.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from pathlib import Path

import torch

BUILD = Path(os.environ.get("UNDER_TEST_BUILD", Path(__file__).resolve().parents[2] / "build"))
LEAST_BYTES = 16384
ALIGN_BYTES = 1024  # tensors that are encoded begin and end on whole blocks of the arena
ROUNDED_AT_ONCE = 4096  # elements whose rest one node keeps (daemon/channel/coded_transfer.cc)
_FLOATS = ctypes.POINTER(ctypes.c_float)


class MissingLibrary(RuntimeError):
    pass


def _library() -> ctypes.CDLL:
    path = BUILD / "bench/libdeft_emulation.so"
    if not path.exists():
        raise MissingLibrary(f"{path} is not built: run scripts/build deft_emulation")
    library = ctypes.CDLL(str(path))
    library.deft_emulation_open.restype = ctypes.c_void_p
    library.deft_emulation_open.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_size_t]
    library.deft_emulation_close.argtypes = [ctypes.c_void_p]
    library.deft_emulation_uses_feedback.argtypes = [ctypes.c_void_p]
    library.deft_emulation_sum.restype = ctypes.c_size_t
    library.deft_emulation_sum.argtypes = [
        ctypes.c_void_p,
        ctypes.c_size_t,
        ctypes.POINTER(_FLOATS),
        ctypes.POINTER(_FLOATS),
        _FLOATS,
        ctypes.c_size_t,
        ctypes.c_uint64,
        ctypes.c_uint64,
        ctypes.c_uint64,
    ]
    library.deft_emulation_open_matrix.restype = ctypes.c_void_p
    library.deft_emulation_open_matrix.argtypes = [
        ctypes.c_char_p,
        ctypes.c_size_t,
        ctypes.POINTER(ctypes.c_uint64),
        ctypes.c_size_t,
        ctypes.c_uint64,
        ctypes.c_uint64,
        ctypes.c_char_p,
        ctypes.c_size_t,
    ]
    library.deft_emulation_close_matrix.argtypes = [ctypes.c_void_p]
    library.deft_emulation_sum_matrix.restype = ctypes.c_size_t
    library.deft_emulation_sum_matrix.argtypes = [ctypes.c_void_p, ctypes.POINTER(_FLOATS), _FLOATS, ctypes.c_uint64]
    library.deft_emulation_residual_of_matrix.argtypes = [ctypes.c_void_p, ctypes.c_size_t, _FLOATS]
    library.deft_emulation_encoded_bytes.restype = ctypes.c_size_t
    library.deft_emulation_encoded_bytes.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    library.deft_emulation_encode.restype = ctypes.c_size_t
    library.deft_emulation_encode.argtypes = [ctypes.c_void_p, _FLOATS, ctypes.c_size_t, ctypes.c_void_p]
    library.deft_emulation_decode_add.argtypes = [
        ctypes.c_void_p,
        ctypes.c_void_p,
        ctypes.c_size_t,
        _FLOATS,
        ctypes.c_size_t,
    ]
    return library


def _open(library: ctypes.CDLL, codec: str) -> int:
    error = ctypes.create_string_buffer(512)
    handle = library.deft_emulation_open(codec.encode(), error, len(error))
    if not handle:
        raise ValueError(error.value.decode())
    return handle


def _pointer(values: torch.Tensor):
    return ctypes.cast(values.data_ptr(), _FLOATS)


def _pointers(arrays: list[torch.Tensor]):
    return (_FLOATS * len(arrays))(*map(_pointer, arrays))


class _EncodedTensor:
    """The buffers of one tensor: values and residuals of each node, padded to whole blocks, and their sum."""

    def __init__(self, first: int, elements: int, padded: int, nodes: int, feedback: bool):
        self.first, self.elements, self.padded = first, elements, padded
        self.values = [torch.zeros(self.padded) for _ in range(nodes)]
        self.residuals = [torch.zeros(self.padded) for _ in range(nodes)] if feedback else None
        self.sum = torch.zeros(self.padded)

    def round_to(self, dtype: torch.dtype) -> None:
        """What this leaves out of a sum goes into the residuals of one node, by the place. Finite sums stay finite."""
        most = torch.finfo(dtype).max
        wide = torch.where(self.sum.isfinite(), self.sum.clamp(-most, most), self.sum).to(dtype).float()
        rest = (self.sum - wide).nan_to_num(0, 0, 0)
        self.sum.copy_(wide)
        if self.residuals is None:
            return
        keeper = torch.arange(self.first, self.first + self.padded) // ROUNDED_AT_ONCE % len(self.residuals)
        for node, residual in enumerate(self.residuals):
            residual += torch.where(keeper == node, rest, 0)


class _Matrix:
    """A tensor that travels as low-rank factors: the library keeps residuals and factors of each node."""

    def __init__(self, library, codec: str, shape: torch.Size, nodes: int, job: int, first: int):
        self._library, self._shape, self._nodes = library, shape, nodes
        error = ctypes.create_string_buffer(512)
        dimensions = (ctypes.c_uint64 * len(shape))(*shape)
        self._matrix = library.deft_emulation_open_matrix(
            codec.encode(), nodes, dimensions, len(shape), job, first, error, len(error)
        )
        if not self._matrix:
            raise ValueError(error.value.decode())

    def __del__(self):
        if getattr(self, "_matrix", None):
            self._library.deft_emulation_close_matrix(self._matrix)

    def add(self, nodes: list[torch.Tensor], generation: int) -> tuple[int, torch.Tensor]:
        """The bytes that one node brings, and the sum."""
        values, total = [node.contiguous() for node in nodes], torch.empty(self._shape)
        bytes_ = self._library.deft_emulation_sum_matrix(self._matrix, _pointers(values), _pointer(total), generation)
        return bytes_, total

    def residuals(self) -> list[torch.Tensor]:
        left_out = [torch.empty(self._shape) for _ in range(self._nodes)]
        for node, residual in enumerate(left_out):
            self._library.deft_emulation_residual_of_matrix(self._matrix, node, _pointer(residual))
        return left_out


class SingleCodec:
    """Encoding and decoding alone, of float32 tensors with `elements` elements."""

    def __init__(self, codec: str, elements: int):
        self._codec = None
        self._library = _library()
        self._codec = _open(self._library, codec)
        self._room = torch.zeros(self._library.deft_emulation_encoded_bytes(self._codec, elements), dtype=torch.uint8)

    def __del__(self):
        if self._codec:
            self._library.deft_emulation_close(self._codec)

    def encode(self, values: torch.Tensor) -> torch.Tensor:
        """The bytes, which the next call writes anew."""
        used = self._library.deft_emulation_encode(self._codec, _pointer(values), values.numel(), self._room.data_ptr())
        if used == 0:
            raise RuntimeError("the codec could not encode")
        return self._room[:used]

    def decode_add(self, code: torch.Tensor, total: torch.Tensor) -> None:
        good = self._library.deft_emulation_decode_add(
            self._codec, code.data_ptr(), code.numel(), _pointer(total), total.numel()
        )
        if not good:
            raise ValueError("these bytes are no encoding of the tensor")


class CodecSums:
    def __init__(
        self,
        codec: str,
        shapes: list[torch.Size],
        nodes: int,
        job: int = 1,
        dtype: torch.dtype = torch.float32,
        first: int = 0,
    ):
        self._shapes, self._nodes, self._job, self._dtype, self._first = shapes, nodes, job, dtype, first
        self._codec = None
        self.wire_bytes = 0
        self._encoded: dict[int, _EncodedTensor | _Matrix] = {}
        if codec != "none":
            self._open(codec)

    def _open(self, codec: str) -> None:
        self._library = _library()
        if codec.partition("/")[0] == "lowrank":
            if self._dtype != torch.float32:
                raise ValueError("the emulation of lowrank adds float32 alone")
            # Wrong parameters are an error without shapes, too.
            _Matrix(self._library, codec, torch.Size([1, 1]), 1, 0, 0)
            return self._place(lambda shape, first: _Matrix(self._library, codec, shape, self._nodes, self._job, first))
        self._codec = _open(self._library, codec)
        feedback = bool(self._library.deft_emulation_uses_feedback(self._codec))
        return self._place(
            lambda shape, first: _EncodedTensor(first, shape.numel(), self._padded(shape), self._nodes, feedback)
        )

    def _bytes(self, shape: torch.Size) -> int:
        return shape.numel() * torch.finfo(self._dtype).bits // 8

    def _padded(self, shape: torch.Size) -> int:
        """Elements up to where the next tensor that is encoded may begin."""
        align = ALIGN_BYTES * 8 // torch.finfo(self._dtype).bits
        return -(-shape.numel() // align) * align

    def _place(self, make: Callable[[torch.Size, int], _EncodedTensor | _Matrix]) -> None:
        """`make`: of a shape and the place of its first element in the arena."""
        first = self._first
        for index, shape in enumerate(self._shapes):
            if len(shape) >= 2 and self._bytes(shape) >= LEAST_BYTES:
                self._encoded[index] = make(shape, first)
                first += self._padded(shape)

    def __del__(self):
        if self._codec:
            self._library.deft_emulation_close(self._codec)

    @property
    def encoded(self) -> list[int]:
        """The places of the tensors that are encoded."""
        return list(self._encoded)

    def residuals(self, index: int) -> list[torch.Tensor]:
        """Of each node, of a tensor that is encoded; empty if the codec keeps none."""
        tensor = self._encoded[index]
        if isinstance(tensor, _Matrix):
            return tensor.residuals()
        return [residual[: tensor.elements] for residual in tensor.residuals or []]

    @torch.no_grad()
    def add(self, gradients: list[list[torch.Tensor]], generation: int, indices: list[int] | None = None):
        """`gradients`: of each node, the tensors at `indices` (all of them); gives their sums over the nodes."""
        sums = []
        for place, index in enumerate(range(len(self._shapes)) if indices is None else indices):
            nodes = [tensors[place] for tensors in gradients]
            sums.append(self._add_encoded(index, nodes, generation) if index in self._encoded else self._add(nodes))
        return sums

    def _add(self, nodes: list[torch.Tensor]) -> torch.Tensor:
        self.wire_bytes += self._bytes(nodes[0].shape)
        total = nodes[0].clone()
        for other in nodes[1:]:
            total += other
        return total

    def _add_encoded(self, index: int, nodes: list[torch.Tensor], generation: int) -> torch.Tensor:
        tensor = self._encoded[index]
        if isinstance(tensor, _Matrix):
            bytes_, total = tensor.add(nodes, generation)
            self._count(bytes_)
            return total
        for values, gradient in zip(tensor.values, nodes, strict=True):
            values[: tensor.elements] = gradient.reshape(-1)
        bytes_ = self._library.deft_emulation_sum(
            self._codec,
            self._nodes,
            _pointers(tensor.values),
            _pointers(tensor.residuals) if tensor.residuals else None,
            _pointer(tensor.sum),
            tensor.padded,
            self._job,
            generation,
            tensor.first,
        )
        self._count(bytes_)
        if self._dtype != torch.float32:
            tensor.round_to(self._dtype)
        return tensor.sum[: tensor.elements].reshape(self._shapes[index]).to(self._dtype, copy=True)

    def _count(self, bytes_: int) -> None:
        if bytes_ == 0:
            raise RuntimeError("a codec could not add what it has encoded itself")
        self.wire_bytes += bytes_

"""torch's own ways to convert, quantise and select values, with the calls of lab.codec_sums.SingleCodec; and how fast
they are beside Deft's codecs."""

from __future__ import annotations

import time

import torch

from lab.codec_sums import SingleCodec

BLOCK = 256  # elements that share a scale of int8


class Converted:
    """A conversion to 16 bits."""

    def __init__(self, dtype: torch.dtype):
        self._dtype = dtype

    def encode(self, values: torch.Tensor):
        return values.to(self._dtype)

    def decode_add(self, code, total: torch.Tensor) -> None:
        total.add_(code)


class Quantised:
    """int8 with a scale for each block."""

    def encode(self, values: torch.Tensor):
        blocks = values.view(-1, BLOCK)
        low, high = blocks.aminmax(dim=1)
        scales = torch.maximum(high, -low).div_(127).clamp_(min=1e-30)
        zeros = torch.zeros(len(scales), dtype=torch.int64)
        return torch.quantize_per_channel(blocks, scales, zeros, 0, torch.qint8)

    def decode_add(self, code, total: torch.Tensor) -> None:
        total.view(-1, BLOCK).add_(code.dequantize())


class Selected:
    """The largest values and their places."""

    def __init__(self, ratio: float):
        self._ratio = ratio

    def encode(self, values: torch.Tensor):
        _, places = torch.topk(values.abs(), max(1, round(self._ratio * values.numel())), sorted=False)
        return places, values[places]

    def decode_add(self, code, total: torch.Tensor) -> None:
        total.index_add_(0, *code)


def of_torch(name: str):
    """A codec that bench/compress_torch knows."""
    plain, _, parameters = name.partition("/")
    if plain == "topk":
        return Selected(float(parameters.removeprefix("ratio=") or 0.01))
    return {"bf16": Converted(torch.bfloat16), "fp16": Converted(torch.float16), "int8": Quantised()}[plain]


def seconds(action) -> float:
    begin = time.perf_counter()
    action()
    return time.perf_counter() - begin


def measure(name: str, values: torch.Tensor, rounds: int) -> list[float]:
    """GB/s of memcpy; of Deft's and torch's encode; of Deft's and torch's decode-and-add."""
    ours, theirs = SingleCodec(name, values.numel()), of_torch(name)
    copy, total = values.clone(), torch.zeros_like(values)
    code = [ours.encode(values), theirs.encode(values)]
    actions = [
        lambda: copy.copy_(values),
        lambda: ours.encode(values),
        lambda: theirs.encode(values),
        lambda: ours.decode_add(code[0], total),
        lambda: theirs.decode_add(code[1], total),
    ]
    best = [float("inf")] * len(actions)
    for _ in range(rounds):
        best = [min(before, seconds(action)) for before, action in zip(best, actions, strict=True)]
    return [4e-9 * values.numel() / time_s for time_s in best]

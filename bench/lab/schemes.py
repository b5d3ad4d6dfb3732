"""Schemes: what bench/compare compares, and how they are written.

compute             every worker trains alone, at the same time, on the same cores: no communication
ddp, ddp:25         PyTorch DDP over gloo, at its best of 1, 5 and 25 MiB buckets or with the given one
fifo, NAME          Deft with DEFT_POLICY=NAME; fifo:bucket_bytes=5MB also sets DEFT_BUCKET_BYTES
...@K               only the first K NICs
...@free            the NICs are not shaped while this scheme runs
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace

DDP_BUCKETS_MIB = (1.0, 5.0, 25.0)


@dataclass(frozen=True)
class Scheme:
    text: str  # as it was written
    kind: str  # compute, ddp or a policy of Deft
    nics: int
    free: bool = False
    bucket_mib: float | None = None  # of DDP
    options: tuple[tuple[str, str], ...] = field(default=())

    @property
    def is_deft(self) -> bool:
        return self.kind not in ("compute", "ddp")

    def variants(self) -> list[Scheme]:
        """DDP without a bucket size stands for several, of which the best counts."""
        if self.kind != "ddp" or self.bucket_mib is not None:
            return [self]
        return [replace(self, bucket_mib=size) for size in DDP_BUCKETS_MIB]


def parse(text: str, nics: int) -> Scheme:
    name, *modifiers = re.split(r"(?=[:@])", text.strip())
    if not re.fullmatch(r"[a-z][a-z0-9_-]*", name):
        raise ValueError(f"scheme '{text}': '{name}' is no name of a scheme (compute, ddp, fifo, bytescheduler, ...)")
    scheme = Scheme(text.strip(), name, nics)
    for modifier in modifiers:
        scheme = _modified(scheme, modifier, nics)
    return scheme


def _modified(scheme: Scheme, modifier: str, nics: int) -> Scheme:
    value = modifier[1:]
    if modifier == "@free":
        return replace(scheme, free=True)
    if modifier.startswith("@"):
        if not value.isdigit() or not 1 <= int(value) <= nics:
            raise ValueError(
                f"scheme '{scheme.text}': '{modifier}' must be @free or @K with K from 1 to --nics, {nics}"
            )
        return replace(scheme, nics=int(value))
    if scheme.kind == "ddp":
        if not re.fullmatch(r"\d+(\.\d+)?", value) or float(value) <= 0:
            raise ValueError(f"scheme '{scheme.text}': '{value}' is no bucket size in MiB, as in ddp:25")
        return replace(scheme, bucket_mib=float(value))
    name, equals, setting = value.partition("=")
    if scheme.kind == "compute" or not equals or not re.fullmatch(r"[a-z_]+", name):
        raise ValueError(f"scheme '{scheme.text}': '{modifier}' is no option of it, as in fifo:bucket_bytes=5MB")
    return replace(scheme, options=(*scheme.options, (name, setting)))


def parse_list(text: str, nics: int) -> list[Scheme]:
    schemes = [parse(part, nics) for part in text.split(",") if part.strip()]
    if not schemes:
        raise ValueError("--schemes names no scheme")
    names = [scheme.text for scheme in schemes]
    if len(set(names)) < len(names):
        raise ValueError(f"--schemes names {next(n for n in names if names.count(n) > 1)} twice")
    return schemes

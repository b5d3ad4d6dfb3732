"""Schemes: what bench/compare compares, and how they are written.

compute               every worker trains alone, at the same time, on the same cores: no communication
ddp, ddp:25           PyTorch DDP over gloo, at its best of 1, 5 and 25 MiB buckets or with the given one
ddp-nosync-K          DDP that adds up K steps' gradients (no_sync) and then communicates and updates once
ddp-fp16              DDP with torch's hook that sends half precision
own                   with --framework: what that framework distributes with by itself
ddp-powersgd          DDP with torch's PowerSGD hook; ddp-powersgd:rank=2:start=10 sets its rank and first step
fifo, NAME            Deft with DEFT_POLICY=NAME; fifo:bucket_bytes=5MB also sets DEFT_BUCKET_BYTES
NAME-accumulate-K     the same with backward_passes_per_step=K
NAME-ddp, NAME-ddp:25 PyTorch DDP whose backend is deft, in its default buckets or those of 25 MiB, DEFT_POLICY=NAME
fsdp2                 FSDP2 over gloo: parameters are sharded between a node's workers and replicated between nodes
NAME-fsdp2            FSDP2 that shards inside a node, and Deft averages between the nodes
...@K                 only the first K NICs
...@free              the NICs are not shaped while this scheme runs
...@2x                they have so many times their rate while this scheme runs
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace

DDP_BUCKETS_MIB = (1.0, 5.0, 25.0)
DDP_HOOKS = ("fp16", "powersgd")
WRAPPERS = ("ddp", "fsdp2")  # of the model, in whose place Deft communicates
NOT_DEFT = ("compute", "ddp", "own", "fsdp2")
# PowerSGD may not begin before DDP has rebuilt its buckets, in the second step. From there on, so that all timed steps
# are compressed. Rank 4 sends about a hundredth of a large layer.
POWERSGD = {"rank": 4, "start": 2}


@dataclass(frozen=True)
class Scheme:
    text: str  # as it was written
    kind: str  # compute, ddp, own, fsdp2 or a policy of Deft
    nics: int
    free: bool = False
    speed: float = 1  # of the NICs, over their rate
    bucket_mib: float | None = None  # of DDP
    options: tuple[tuple[str, str], ...] = field(default=())
    passes: int = 1  # steps whose gradients are added up before they are communicated
    hook: str = ""  # of DDP's communication
    wrapper: str = ""  # of the model, over Deft; none: Deft's optimizer
    tries_buckets: bool = False  # one of the bucket sizes among which DDP's best is sought

    @property
    def is_deft(self) -> bool:
        return self.kind not in NOT_DEFT

    @property
    def role(self) -> str:
        """How its workers train: a key of trainers.py's."""
        return "-".join(filter(None, ("deft", self.wrapper))) if self.is_deft else self.kind

    @property
    def codec(self) -> str:
        """With which codec Deft encodes: none, auto if plans choose, or a name."""
        chosen = dict(self.options).get("compression") or ("auto" if self.kind == "knapsack" else "none")
        return "auto" if chosen.startswith("auto") else chosen

    @property
    def is_plain_ddp(self) -> bool:
        """The baseline: every step's gradients, as they are."""
        return self.kind == "ddp" and self.passes == 1 and not self.hook

    @property
    def label(self) -> str:
        return f"{self.text} ({self.bucket_mib:g} MiB)" if self.tries_buckets else self.text

    def variants(self) -> list[Scheme]:
        """DDP without a bucket size stands for several, of which the best counts."""
        if self.kind != "ddp" or self.bucket_mib is not None:
            return [self]
        return [replace(self, bucket_mib=size, tries_buckets=True) for size in DDP_BUCKETS_MIB]

    def whole_updates(self, steps: int) -> int:
        """The next number of steps after which no gradient waits for its update."""
        return -(-steps // self.passes) * self.passes


def parse(text: str, nics: int) -> Scheme:
    name, *modifiers = re.split(r"(?=@|(?<!=even):)", text.strip())  # merge_groups=even:4 is one option
    if not re.fullmatch(r"[a-z][a-z0-9_-]*", name):
        raise ValueError(f"scheme '{text}': '{name}' is no name of a scheme (compute, ddp, fifo, bytescheduler, ...)")
    scheme = _named(text.strip(), name, nics)
    for modifier in modifiers:
        scheme = _modified(scheme, modifier, nics)
    return scheme


def _named(text: str, name: str, nics: int) -> Scheme:
    """compute, ddp-nosync-4, bytescheduler-accumulate-2 and so on, without what follows the name."""
    many = re.fullmatch(r"(ddp)-nosync-(\d+)|([a-z][a-z0-9_-]*)-accumulate-(\d+)", name)
    if many:
        kind, passes = many[1] or many[3], int(many[2] or many[4])
        if kind in NOT_DEFT and not many[1]:
            raise ValueError(f"scheme '{text}': for DDP it is ddp-nosync-K, for a policy of Deft NAME-accumulate-K")
        if passes < 1:
            raise ValueError(f"scheme '{text}': K steps are added up, and K is 1 or more")
        return Scheme(text, kind, nics, passes=passes)
    if name.startswith("ddp-"):
        if name[4:] not in DDP_HOOKS:
            raise ValueError(f"scheme '{text}': DDP comes as ddp, ddp-nosync-K, ddp-{', ddp-'.join(DDP_HOOKS)}")
        return Scheme(text, "ddp", nics, hook=name[4:])
    policy, _, wrapper = name.rpartition("-")
    if wrapper in WRAPPERS and policy in NOT_DEFT:
        raise ValueError(f"scheme '{text}': {wrapper} communicates by a policy of Deft, as in fifo-{wrapper}")
    if policy and wrapper in WRAPPERS:
        return Scheme(text, policy, nics, wrapper=wrapper)
    return Scheme(text, name, nics)


def _modified(scheme: Scheme, modifier: str, nics: int) -> Scheme:
    value = modifier[1:]
    if modifier == "@free":
        return replace(scheme, free=True)
    if re.fullmatch(r"@\d+(\.\d+)?x", modifier) and float(value[:-1]) > 0:
        return replace(scheme, speed=float(value[:-1]))
    if modifier.startswith("@"):
        if not value.isdigit() or not 1 <= int(value) <= nics:
            raise ValueError(
                f"scheme '{scheme.text}': '{modifier}' must be @free, @2x or @K with K from 1 to --nics, {nics}"
            )
        return replace(scheme, nics=int(value))
    name, equals, setting = value.partition("=")
    if scheme.kind == "ddp" or (scheme.wrapper == "ddp" and not equals):
        return _modified_ddp(scheme, value)
    if scheme.kind in ("compute", "fsdp2") or not equals or not re.fullmatch(r"[a-z_]+", name):
        raise ValueError(f"scheme '{scheme.text}': '{modifier}' is no option of it, as in fifo:bucket_bytes=5MB")
    return replace(scheme, options=(*scheme.options, (name, setting)))


def _modified_ddp(scheme: Scheme, value: str) -> Scheme:
    name, equals, setting = value.partition("=")
    if equals and scheme.hook == "powersgd":
        least = POWERSGD["start"] if name == "start" else 1
        if name not in POWERSGD or not setting.isdigit() or int(setting) < least:
            raise ValueError(f"scheme '{scheme.text}': PowerSGD takes rank=R (1 or more) and start=STEP (2 or more)")
        return replace(scheme, options=(*scheme.options, (name, setting)))
    if not re.fullmatch(r"\d+(\.\d+)?", value) or float(value) <= 0:
        raise ValueError(f"scheme '{scheme.text}': '{value}' is no bucket size in MiB, as in ddp:25")
    return replace(scheme, bucket_mib=float(value))


def parse_list(text: str, nics: int) -> list[Scheme]:
    schemes = [parse(part, nics) for part in text.split(",") if part.strip()]
    if not schemes:
        raise ValueError("--schemes names no scheme")
    names = [scheme.text for scheme in schemes]
    if len(set(names)) < len(names):
        raise ValueError(f"--schemes names {next(n for n in names if names.count(n) > 1)} twice")
    return schemes


def check_framework(schemes: list[Scheme], framework: str) -> None:
    """Refuses schemes that this framework does not have."""
    for scheme in schemes:
        if framework == "torch":
            if scheme.kind == "own":
                raise ValueError(f"scheme '{scheme.text}': it needs --framework tensorflow or mxnet; PyTorch has ddp")
        elif scheme.kind in WRAPPERS or scheme.wrapper:
            raise ValueError(f"scheme '{scheme.text}': {framework} has `own` instead of DDP and FSDP2")
        elif scheme.passes > 1:
            raise ValueError(f"scheme '{scheme.text}': {framework} adds up no gradients in the lab")
        elif scheme.kind == "own" and scheme.options:
            raise ValueError(f"scheme '{scheme.text}': `own` has no options")


def check_workers(schemes: list[Scheme], workers: int, accelerator: bool) -> None:
    """Refuses FSDP2 if it has nothing to shard."""
    for scheme in schemes:
        if "fsdp2" not in (scheme.kind, scheme.wrapper):
            continue
        if workers < 2:
            raise ValueError(f"scheme '{scheme.text}': a node's workers hold a shard each: --workers 2 or more")
        if accelerator:
            raise ValueError(f"scheme '{scheme.text}': it shards real layers, which --accelerator does not have")


def check_policies(schemes: list[Scheme], policies: list[str]) -> None:
    """Refuses what Deft's table of options does not know."""
    for scheme in schemes:
        if scheme.is_deft and scheme.kind not in policies:
            raise ValueError(
                f"scheme '{scheme.text}': Deft has no policy '{scheme.kind}'; it has {', '.join(policies)}"
            )

"""The tuned options: a part size and a credit, under one policy."""

from __future__ import annotations

from dataclasses import dataclass, replace

KB, MB = 1 << 10, 1 << 20
SIZES = ("partition_bytes", "credit_bytes")
USES_SIZES = ("bytescheduler", "prophet", "usbyte")  # has_sizes in core/base/policy_traits.h


@dataclass(frozen=True)
class Settings:
    """The values of the options of these names."""

    policy: str
    partition_bytes: int
    credit_bytes: int

    def words(self) -> list[str]:
        """As `deft set` takes them."""
        return [f"{name}={value}" for name, value in self.options().items()]

    def options(self) -> dict[str, str]:
        names = ("policy", *SIZES)
        return {name: str(getattr(self, name)) for name in names}

    def __str__(self) -> str:
        return f"{self.policy}, parts of {in_bytes(self.partition_bytes)}, credit {in_bytes(self.credit_bytes)}"


@dataclass(frozen=True)
class Space:
    """The least and the most of each size. Sizes are whole pages, which every policy can send."""

    partition_bytes: tuple[int, int] = (64 * KB, 16 * MB)
    credit_bytes: tuple[int, int] = (64 * KB, 64 * MB)
    page: int = 4 * KB

    def limits(self, name: str) -> tuple[int, int]:
        return getattr(self, name)

    def rounded(self, name: str, size: float) -> int:
        least, most = self.limits(name)
        return min(most, max(least, self.page * round(size / self.page)))

    def scaled(self, settings: Settings, factors: dict[str, float]) -> Settings | None:
        """The settings with some sizes so many times as large, within their limits; None if one cannot go that way.

        A job's own sizes may lie outside of the limits. From there the first step leads to the limit.
        """
        changed = {}
        for name, factor in factors.items():
            size = getattr(settings, name)
            changed[name] = self.rounded(name, size * factor)
            if changed[name] == size or (changed[name] > size) != (factor > 1):
                return None
        return replace(settings, **changed)


def in_bytes(size: int) -> str:
    """4MB, 96KB or 1000, as options take it."""
    for unit, name in ((MB, "MB"), (KB, "KB")):
        if size >= unit and size % unit == 0:
            return f"{size // unit}{name}"
    return str(size)

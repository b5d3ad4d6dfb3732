"""Durations such as 30s, 500ms or 2m, as the daemon reads them (core/base/quantities)."""

import re

from deft._native import option

_UNITS_S = {"": 1, "s": 1, "ms": 1e-3, "us": 1e-6, "m": 60, "min": 60, "h": 3600}


def timeout_seconds() -> float:
    """The option `timeout`."""
    number, unit = re.fullmatch(r"([0-9.e+-]+)\s*([a-z]*)", option("timeout").strip().lower()).groups()
    return float(number) * _UNITS_S[unit]

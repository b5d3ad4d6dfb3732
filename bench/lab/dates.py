"""When parameters are updated: the cases of bench/lateness, known before torch is loaded.

    case = parse("1:4+3@100")

What a case says stands in bench/lateness.
"""

from __future__ import annotations

import argparse
import re
from typing import NamedTuple

MOMENTUM = 0.9


class Case(NamedTuple):
    name: str = "0:1+0"
    late: str = "0"  # how many of the largest matrices; or "all": every parameter
    merged: int = 1
    delay: int = 0
    rest: int = 1
    factor: float = 1.0
    momentum: float = MOMENTUM
    ahead: float = 0.0
    begins: int = 0


PLAIN = Case()


def parse(text: str) -> Case:
    numbers = r"(?:/(\d+))?(?:x(\d+\.?\d*))?(?:m(0\.\d+))?(?:~(\d+\.?\d*))?(?:@(\d+))?"
    found = re.fullmatch(r"(\d+|all):(\d+)\+(\d+)" + numbers, text)
    if not found or int(found[2]) == 0 or found[4] == "0":
        raise argparse.ArgumentTypeError(
            f"'{text}' is no case: write for instance 1:3+1, all:2+1x2, all:2+1~1 or 1:2+1@100"
        )
    late, merged, delay, rest, factor, momentum, ahead, begins = found.groups()
    return Case(
        text,
        late,
        int(merged),
        int(delay),
        int(rest or 1),
        float(factor or 1),
        float(momentum or MOMENTUM),
        float(ahead or 0),
        int(begins or 0),
    )

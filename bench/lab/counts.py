"""Numbers on the command lines of the benchmarks."""

from __future__ import annotations

import argparse


def positive(text: str) -> int:
    """argparse's type for rounds, steps and the like. A program that makes none of them measures nothing."""
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"'{text}' is no whole number from 1 on")
    return number

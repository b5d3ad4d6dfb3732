"""Rows of texts and numbers, in columns for a terminal."""

from __future__ import annotations

from collections.abc import Sequence


def aligned(rows: Sequence[Sequence[str]], texts: int = 1) -> list[str]:
    """A line a row, with a rule below the first one, which has the titles. The first columns, `texts` of them, begin on
    the left, and numbers end on the right. A column that is empty below its title is left out."""
    shown = [(place, column) for place, column in enumerate(zip(*rows, strict=True)) if set(column[1:]) != {""}]
    widths = [max(map(len, column)) for _, column in shown]
    places = [place for place, _ in shown]
    lines = [
        "  ".join(
            cell.ljust(width) if place < texts else cell.rjust(width)
            for place, cell, width in zip(places, row, widths, strict=True)
        ).rstrip()
        for row in zip(*(column for _, column in shown), strict=True)
    ]
    return [lines[0], "-" * max(map(len, lines)), *lines[1:]]

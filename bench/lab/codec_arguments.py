"""The command line of bench/codecs, which is read before torch is loaded: that takes seconds."""

from __future__ import annotations

import argparse
from pathlib import Path

from lab import dates
from lab.counts import positive
from lab.schedule import SCHEDULES

MODELS = ("cnn", "resnet", "gpt", "mlp")  # the keys of lab.codec_grid.MODELS
STEPS_APART = 10  # of two evaluations of a run


def parser(description: str) -> argparse.ArgumentParser:
    options = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--model", choices=MODELS, default="cnn")
    options.add_argument(
        "--codecs", default="none,int8,int4", help="the first one is what the others are compared with"
    )
    options.add_argument("--dates", default="fresh", help="fresh, or cases of bench/lateness, separated by commas")
    options.add_argument("--seeds", type=positive, default=8)
    options.add_argument("--steps", type=positive, default=500)
    options.add_argument("--nodes", type=positive, default=2)
    options.add_argument("--batch", type=positive, help="samples a node and step; default: the model's, halved")
    options.add_argument("--optimizer", choices=["sgd", "adam"], help="default: the model's")
    options.add_argument("--learning-rate", type=float, help="default: the model's")
    options.add_argument("--schedule", choices=list(SCHEDULES), default="cosine", help="of the learning rate")
    options.add_argument(
        "--precision",
        choices=["float32", "float16"],
        default="float32",
        help="float16: by autocast, with a scale of the loss as that of GradScaler (default float32)",
    )
    options.add_argument(
        "--evaluations",
        type=positive,
        default=1,
        help="a run's result is their mean, ten steps apart, the last one at the end: a rate that does not fall leaves "
        "noise in each of them (default 1)",
    )
    options.add_argument("--data", help="folder with the data set's files")
    options.add_argument("--results", type=Path, help="file of finished runs; default: none is kept")
    return options


def codec_names(text: str) -> list[str]:
    """Separated by commas, which stand between a codec's parameters, too: none,lowrank/rank=2,method=powersgd."""
    names: list[str] = []
    for word in text.split(","):
        if names and "=" in word and "/" not in word:
            names[-1] += f",{word}"
        else:
            names.append(word)
    return names


def check(arguments: argparse.Namespace) -> None:
    """Raises ValueError: dates that are none or that the precision does not permit, more evaluations than steps."""
    if STEPS_APART * (arguments.evaluations - 1) >= arguments.steps:
        raise ValueError(f"--evaluations {arguments.evaluations}: {arguments.steps} steps have room for fewer")
    for case in arguments.dates.split(","):
        if case == "fresh":
            continue
        try:
            dates.parse(case)
        except argparse.ArgumentTypeError as mistake:
            raise ValueError(f"--dates: {mistake}") from None
        if arguments.precision == "float16":
            raise ValueError(f"--dates {case} with --precision float16: a step that the scale skips has no date")

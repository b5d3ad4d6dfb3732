"""What bench/compare is told, and what cannot work, said before anything is started."""

from __future__ import annotations

import argparse
import math
import os
from pathlib import Path

from lab import data, rates
from lab.job import REPOSITORY
from lab.schemes import Scheme, parse_list


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="bench/compare", description="Compare communication schemes by real training in emulated nodes."
    )
    add = made.add_argument
    add(
        "--nodes",
        type=int,
        default=2,
        metavar="N",
        help="emulated nodes, each on its own share of the cores (default 2)",
    )
    add("--nics", type=int, default=2, metavar="M", help="NICs a node (default 2)")
    add("--workers", type=int, default=1, metavar="W", help="workers a node, one thread each (default 1)")
    rate = made.add_mutually_exclusive_group()
    rate.add_argument(
        "--rate", metavar="R", help="rate of the NICs, each way: 200mbit, one a NIC (200mbit,50mbit), or none"
    )
    rate.add_argument(
        "--coverage",
        type=float,
        metavar="C",
        help="shape the NICs so that all together need C x the measured compute time a step (default 1)",
    )
    add("--model", default="cnn", help="cnn (4.38 M parameters) or mlp (tiny) (default cnn)")
    add(
        "--schemes",
        default="compute,ddp,fifo,bytescheduler",
        help="compute, ddp, ddp:25 (MiB), any DEFT_POLICY, with :option=value, @K (first K NICs), @free (not shaped)",
    )
    add("--steps", type=int, default=20, metavar="N", help="timed steps a scheme and round (default 20)")
    add("--rounds", type=int, default=3, metavar="R", help="how often all schemes take their turn (default 3)")
    add(
        "--epochs",
        type=float,
        metavar="E",
        help="train this many epochs in all, instead of --steps, and measure accuracy",
    )
    add("--accuracy", action="store_true", help="measure test accuracy at the end")
    add("--batch", type=int, default=128, help="samples a worker and step (default 128)")
    add("--learning-rate", type=float, default=0.05, help="of SGD with momentum 0.9 (default 0.05)")
    add("--seed", type=int, default=1)
    add("--data", metavar="DIR", help="folder with the Fashion-MNIST files")
    add(
        "--build",
        metavar="DIR",
        default=str(REPOSITORY / "build"),
        help="where deftd and the Python package were built",
    )
    add("--json", metavar="FILE", help="write the results as JSON")
    add("--plot", metavar="FILE", help="write the results as a plot (.png or .svg)")
    add("--logs", metavar="DIR", help="keep what workers and daemons print")
    add("--loopback", action="store_true", help="no emulated nodes: everything over loopback, not shaped")
    add(
        "--lab-shell",
        nargs=argparse.REMAINDER,
        metavar="CMD",
        help="run CMD (default: a shell) in the lab instead; in it, `on 0 CMD` runs CMD in node 0",
    )
    return made


def check(arguments: argparse.Namespace) -> list[Scheme]:
    """The schemes; ValueError for whatever cannot work."""
    for name, least in (("nodes", 1), ("nics", 1), ("workers", 1), ("steps", 1), ("rounds", 1), ("batch", 1)):
        if getattr(arguments, name) < least:
            raise ValueError(f"--{name} is {getattr(arguments, name)}: at least {least}")
    if arguments.nodes > 254 or arguments.nics > 254:
        raise ValueError("--nodes and --nics go up to 254")
    if arguments.model not in ("cnn", "mlp"):
        raise ValueError(f"--model {arguments.model}: there are cnn and mlp")
    for name in ("coverage", "epochs"):
        value = getattr(arguments, name)
        if value is not None and not (math.isfinite(value) and value > 0):
            raise ValueError(f"--{name} is {value}: it must be above 0")
    if arguments.nodes == 1 and arguments.coverage is not None:
        raise ValueError("--coverage needs at least two nodes: one sends nothing")
    if arguments.rate:
        rates.parse(arguments.rate, arguments.nics)
    if arguments.plot and not arguments.plot.endswith((".png", ".svg", ".pdf")):
        raise ValueError(f"--plot {arguments.plot}: the name must end in .png, .svg or .pdf")
    for name in filter(None, (arguments.json, arguments.plot)):
        if not os.access(Path(name).resolve().parent, os.W_OK):
            raise ValueError(f"cannot write {name}: its folder does not exist or is read-only")
    data.find(arguments.data)
    return parse_list(arguments.schemes, arguments.nics)

"""The options of bench/compare. Values that cannot work are errors before anything is started."""

from __future__ import annotations

import argparse
import math
import os
from pathlib import Path

from lab import catalogue, deft_program, events, frameworks, predictions, rates
from lab.catalogue import MODELS
from lab.job import REPOSITORY, interpreter
from lab.schedule import SCHEDULES
from lab.schemes import Scheme, check_framework, check_policies, check_workers, parse_list

_SCHEMES = ("compute,ddp,fifo,bytescheduler", "compute,own,fifo,bytescheduler,knapsack")  # torch; other frameworks


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="bench/compare", description="Compare communication schemes by real training in emulated nodes."
    )
    _add_network(made.add_argument_group("nodes and network"))
    _add_training(made.add_argument_group("training"))
    _add_measurements(made.add_argument_group("schemes and measurements"))
    _add_changes(made.add_argument_group("changes in mid-run"))
    _add_output(made.add_argument_group("programs and output"))
    return made


def _add_network(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add(
        "--nodes",
        type=int,
        default=2,
        metavar="N",
        help="emulated nodes, each on its own share of the cores (default 2)",
    )
    add("--nics", type=int, default=2, metavar="M", help="NICs a node (default 2)")
    add("--workers", type=int, default=1, metavar="W", help="workers a node, one thread each (default 1)")
    rate = group.add_mutually_exclusive_group()
    rate.add_argument(
        "--rate", metavar="R", help="rate of the NICs, each way: 200mbit, one a NIC (200mbit,50mbit), or none"
    )
    rate.add_argument(
        "--coverage",
        type=float,
        metavar="C",
        help="shape the NICs so that all together need C x the measured compute time a step (default 1)",
    )
    add(
        "--links",
        metavar="L",
        help="Deft's links, as gloo:eth0,mpi:eth1 (default: gloo on every NIC); ps:eth0 has a server on each node; "
        "@K keeps those on the first K NICs, where there has to be one",
    )
    add("--loopback", action="store_true", help="no emulated nodes: everything over loopback, not shaped")


def _add_training(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    models = "; ".join(f"{name}: {model.summary}" for name, model in MODELS.items())
    add(
        "--framework",
        choices=["torch", *frameworks.FRAMEWORKS],
        default="torch",
        help="who computes (default torch); the others have the models " + ", ".join(frameworks.LAYERS),
    )
    add("--model", default="cnn", help=f"{models} (default cnn)")
    add("--batch", type=int, help="samples a worker and step (default: the model's, 32 to 128)")
    add("--learning-rate", type=float, help="default: the model's, 0.02 or 0.05 (SGD, momentum 0.9) or 0.001 (Adam)")
    add(
        "--schedule",
        choices=list(SCHEDULES),
        default="constant",
        help="of the learning rate over the whole run: constant, or cosine, with a warm-up (default constant)",
    )
    add("--seed", type=int, default=1, help="of parameters and samples (default 1)")
    add("--data", metavar="DIR", help="folder with the Fashion-MNIST files, or with text files for gpt and words")
    add(
        "--accelerator",
        action="store_true",
        help="measure each layer's time on the cores, then let it take that time asleep, with ready-made gradients: as "
        "if an accelerator computed. No training: times, CPU and equal replicas only",
    )


def _add_measurements(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add(
        "--schemes",
        help="compute, ddp, ddp:25 (MiB), ddp-nosync-K, ddp-fp16, ddp-powersgd, own (another --framework's own), any "
        "DEFT_POLICY, NAME-accumulate-K, NAME-ddp (DDP over Deft), fsdp2, NAME-fsdp2, with :option=value, @K (first K "
        "NICs), @free (not shaped), @2x (so many times the rate)",
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
    add(
        "--time-to-accuracy",
        metavar="X",
        help="with --epochs: also measure test accuracy after each round, and say when it reached X (0.85 or 85%%)",
    )
    add(
        "--verify",
        action="store_true",
        help="compare the simulator's forecast for the measured layers and links with each scheme's step time",
    )
    add(
        "--paired",
        metavar="SCHEME",
        help="say the ratio of this scheme's step to each other one's in the same round, with its 95 %% interval",
    )
    add(
        "--predict",
        action="store_true",
        help="trace each scheme of Deft in every round, and compare what `deft replay` predicts of it, and from the "
        "first one's trace of the others, with their traced steps",
    )


def _add_changes(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--nic-event",
        action="append",
        default=[],
        metavar="E",
        help="change a NIC in mid-run: 'eth1@step 50: 50mbit' (all nodes) or 'node1/eth1@step 50: down'; repeatable",
    )
    group.add_argument(
        "--straggler",
        action="append",
        default=[],
        metavar="S",
        help="'node1@step 30: 0.5': from that step on this node gets half of its cores; repeatable",
    )


def _add_output(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add(
        "--build",
        metavar="DIR",
        default=str(REPOSITORY / "build"),
        help="where deftd and the Python package were built",
    )
    add("--json", metavar="FILE", help="write the results as JSON")
    add("--plot", metavar="FILE", help="write the results as a plot (.png or .svg)")
    add("--logs", metavar="DIR", help="keep what workers, daemons and parameter servers print")
    add(
        "--lab-shell",
        nargs=argparse.REMAINDER,
        metavar="CMD",
        help="run CMD (default: a shell) in the lab instead; in it, `on 0 CMD` runs CMD in node 0",
    )


def check(arguments: argparse.Namespace) -> list[Scheme]:
    """The schemes; ValueError for whatever cannot work. What the model decides is filled in."""
    if arguments.model not in MODELS:
        raise ValueError(f"--model {arguments.model}: there are {', '.join(MODELS)}")
    model = MODELS[arguments.model]
    _check_framework(arguments)
    arguments.batch = model.batch if arguments.batch is None else arguments.batch
    arguments.learning_rate = model.learning_rate if arguments.learning_rate is None else arguments.learning_rate
    _check_numbers(arguments)
    if arguments.rate:
        rates.parse(arguments.rate, arguments.nics)
    check_links(arguments)
    _check_output(arguments)
    _check_events(arguments)
    if arguments.lab_shell is None:
        catalogue.find_data(arguments.model, arguments.data)
    schemes = parse_list(arguments.schemes or _SCHEMES[arguments.framework != "torch"], arguments.nics)
    _check_nics(arguments, schemes)
    check_framework(schemes, arguments.framework)
    check_workers(schemes, arguments.workers, arguments.accelerator)
    _check_measurements(arguments, schemes)
    policies = known_policies(Path(arguments.build))
    if policies is not None:
        check_policies(schemes, policies)
    return schemes


def _check_numbers(arguments: argparse.Namespace) -> None:
    for name in ("nodes", "nics", "workers", "steps", "rounds", "batch"):
        if getattr(arguments, name) < 1:
            raise ValueError(f"--{name} is {getattr(arguments, name)}: at least 1")
    if arguments.nodes > 254 or arguments.nics > 254:
        raise ValueError("--nodes and --nics go up to 254")
    for name in ("coverage", "epochs"):
        value = getattr(arguments, name)
        if value is not None and not (math.isfinite(value) and value > 0):
            raise ValueError(f"--{name} is {value}: it must be above 0")
    if arguments.nodes == 1 and arguments.coverage is not None:
        raise ValueError("--coverage needs at least two nodes: one sends nothing")


def _check_output(arguments: argparse.Namespace) -> None:
    """A run of hours must not end with a file that cannot be written."""
    if arguments.plot and not arguments.plot.endswith((".png", ".svg", ".pdf")):
        raise ValueError(f"--plot {arguments.plot}: the name must end in .png, .svg or .pdf")
    for name in filter(None, (arguments.json, arguments.plot)):
        path = Path(name).resolve()
        if path.is_dir():
            raise ValueError(f"cannot write {name}: it is a folder")
        if not os.access(path if path.exists() else path.parent, os.W_OK):
            raise ValueError(f"cannot write {name}: it is read-only, or its folder is or does not exist")


def _check_framework(arguments: argparse.Namespace) -> None:
    name = arguments.framework
    if name == "torch":
        return
    if not interpreter(name).exists():
        raise ValueError(f"--framework {name} needs {interpreter(name).parents[1]}: run scripts/setup test")
    if arguments.model not in frameworks.LAYERS:
        raise ValueError(f"--model {arguments.model}: with {name} there are {', '.join(frameworks.LAYERS)}")
    if arguments.accelerator or arguments.verify or arguments.predict or arguments.schedule != "constant":
        raise ValueError(f"--framework {name} goes without --accelerator, --verify, --predict and --schedule")


def check_links(arguments: argparse.Namespace) -> None:
    """--links as a tuple."""
    given = (arguments.links or "").split(",") if arguments.links else []
    nics = [f"eth{nic}" for nic in range(arguments.nics)]
    for link in given:
        if link.partition(":")[2] not in nics:
            raise ValueError(f"--links {arguments.links}: '{link}' must name a NIC: gloo:eth0, with {', '.join(nics)}")
    arguments.links = tuple(given)


def _check_nics(arguments: argparse.Namespace, schemes: list[Scheme]) -> None:
    """Refuses schemes whose NICs have no link, or no rate."""
    linked = {int(link.partition(":eth")[2]) for link in arguments.links}
    unshaped = arguments.rate == "none" or (arguments.rate is None and arguments.nodes == 1)
    given = rates.parse(arguments.rate, arguments.nics) if arguments.rate else None
    for scheme in schemes:
        if linked and scheme.is_deft and min(linked) >= scheme.nics and "links" not in dict(scheme.options):
            raise ValueError(f"scheme '{scheme.text}': none of --links {','.join(arguments.links)} is on its NICs")
        if scheme.speed != 1 and unshaped:
            raise ValueError(f"scheme '{scheme.text}': NICs that are not shaped have no rate to multiply")
        if given:
            rates.scaled(given, scheme.speed)
    if arguments.loopback:
        check_loopback(arguments, schemes)


def check_loopback(arguments: argparse.Namespace, schemes: list[Scheme]) -> None:
    """Refuses what needs emulated nodes."""
    if arguments.nic_event:
        raise ValueError("--nic-event needs emulated nodes: loopback is not shaped")
    if arguments.links:
        raise ValueError("--links needs emulated nodes: loopback has one NIC, lo, and a link of gloo")
    if faster := [scheme.text for scheme in schemes if scheme.speed != 1]:
        raise ValueError(f"scheme '{faster[0]}' needs emulated nodes: loopback is not shaped")


def _check_events(arguments: argparse.Namespace) -> None:
    """Reads the changes in mid-run."""
    nodes, nics = arguments.nodes, arguments.nics
    arguments.nic_event = [events.parse_nic_event(text, nodes, nics) for text in arguments.nic_event]
    arguments.straggler = [events.parse_straggler(text, nodes) for text in arguments.straggler]
    for event in [*arguments.nic_event, *arguments.straggler]:
        if event.step < 1 or (arguments.epochs is None and event.step >= arguments.steps):
            raise ValueError(f"step {event.step} ({event}) is in no round: each counts its steps from 1 and ends with "
                             f"--steps, {arguments.steps}")  # fmt: skip


def _check_measurements(arguments: argparse.Namespace, schemes: list[Scheme]) -> None:
    if arguments.time_to_accuracy is not None:
        text = arguments.time_to_accuracy.strip()
        try:
            wanted = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
        except ValueError:
            wanted = 0.0
        if not 0 < wanted < 1:
            raise ValueError(f"--time-to-accuracy {text}: it is between 0 and 1, or between 0% and 100%")
        if arguments.epochs is None:
            raise ValueError("--time-to-accuracy needs --epochs")
        arguments.time_to_accuracy = wanted
    if arguments.accelerator:
        for name in ("accuracy", "epochs"):
            if getattr(arguments, name):
                raise ValueError(f"--accelerator learns nothing: leave out --{name}")
        if arguments.straggler:
            raise ValueError("--straggler takes cores away, which compute does not use with --accelerator")
    if arguments.paired:
        if arguments.paired not in [scheme.text for scheme in schemes]:
            raise ValueError(f"--paired {arguments.paired}: it is none of the schemes")
        if arguments.rounds < 3:
            raise ValueError("--paired needs --rounds 3 or more: the first one does not count")
    _check_forecasts(arguments, schemes)


def _check_forecasts(arguments: argparse.Namespace, schemes: list[Scheme]) -> None:
    for option in ("predict", "verify"):
        if not getattr(arguments, option):
            continue
        if arguments.nic_event or arguments.straggler:
            raise ValueError(f"--{option} compares steady states: leave out --nic-event and --straggler")
        if arguments.nodes < 2:
            raise ValueError(f"--{option} needs at least two nodes: one sends nothing")
    if arguments.predict:
        given = [name for name in ("epochs", "accuracy", "time_to_accuracy") if getattr(arguments, name)]
        given += ["schedule"] if arguments.schedule != "constant" else []
        if given:
            raise ValueError("--predict trains more steps in each round, which no epoch and no schedule counts: "
                             f"leave out --{given[0].replace('_', '-')}")  # fmt: skip
        predictions.check(schemes)
    if arguments.verify:
        if any(scheme.speed != 1 for scheme in schemes):
            raise ValueError("--verify measures the links at one rate: leave out the schemes NAME@2x")
        if not any(scheme.kind == "compute" for scheme in schemes):
            raise ValueError("--verify needs the scheme compute, in whose steps the layers are measured")
        if any(scheme.wrapper for scheme in schemes):
            raise ValueError("--verify forecasts Deft's optimizer: leave out the schemes NAME-ddp and NAME-fsdp2")
        if encodes := [scheme.text for scheme in schemes if scheme.is_deft and scheme.codec != "none"]:
            raise ValueError(f"scheme '{encodes[0]}': --verify forecasts exact gradients; add :compression=none")


def known_policies(build: Path) -> list[str] | None:
    """The policies in Deft's table of options; None if nothing is built. Each scheme says that for itself later."""
    program = build / "bin" / "deft"
    if not program.exists():
        return None
    return deft_program.options(program)["policy"]["choices"].split("|")

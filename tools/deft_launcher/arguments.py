"""deftrun's command line: its own flags, and every option of Deft as a flag."""

from __future__ import annotations

import argparse
import difflib
import json
import os
import re
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

from deft_launcher import hosts
from deft_launcher.hosts import Node, UsageError

OURS = {"leader", "listen"}  # deftrun sets them
DAY_SECONDS = 86_400
FORWARDED = ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH", "VIRTUAL_ENV", "OMP_NUM_THREADS", "PYTHONUNBUFFERED")

USAGE = "deftrun -np N [-H host:slots,...] [--hostfile F] [--nodes K] [-x VAR] [--OPTION VALUE ...] COMMAND ..."
EPILOG = """Every option of Deft (deft options) is a flag too: --policy bytescheduler, --links gloo:eth0, ...
If OMP_NUM_THREADS is not set, workers get one with which they share the machine's cores.
Exit status: the first failing worker's, 128 + N if signal N killed it, 1 if Deft failed, 2 for wrong usage."""


@dataclass
class Run:
    command: list[str]
    nodes: list[Node]
    options: dict[str, str] = field(default_factory=dict)  # of Deft, by name: the flags
    given: dict[str, str] = field(default_factory=dict)  # the same, with what variables and the flag file say
    of_daemons: set[str] = field(default_factory=set)  # names of the options that only daemons read
    forwarded: dict[str, str] = field(default_factory=dict)  # variables for other hosts
    start_timeout: float = 60
    grace: float = 5
    verbose: bool = False

    @property
    def world(self) -> int:
        return sum(node.workers for node in self.nodes)


def program(name: str) -> str:
    """A program of this installation: beside deftrun, in the tree's build folder, or on the PATH."""
    here = Path(__file__).resolve().parent.parent
    for folder in (here, here.parent.parent / "bin", here.parent / "build" / "bin"):
        if os.access(folder / name, os.X_OK) and (folder / name).is_file():
            return str(folder / name)
    found = shutil.which(name)
    if not found:
        raise UsageError(f"the program {name} is neither beside deftrun nor on the PATH: run scripts/build")
    return found


def listed_options(which: str):
    listed = subprocess.run([program("deft"), "options", which], capture_output=True, text=True)
    if listed.returncode != 0:
        raise UsageError(f"deft options failed: {listed.stderr.strip()}")
    return json.loads(listed.stdout)


class Retired(argparse.Action):
    """A flag that existed once."""

    def __init__(self, *arguments, instead: str, **keywords):
        super().__init__(*arguments, **keywords)
        self.instead = instead

    def __call__(self, parser, namespace, values, option_string=None):
        raise UsageError(f"{option_string} is no option any more ({self.instead})")


def make_parser(names: list[str], retired: dict[str, str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="deftrun",
        usage=USAGE,
        description="Starts a training run: N workers, and a daemon where none runs; ends them all together.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("-np", type=positive, metavar="N", help="number of workers; without it all slots of the hosts")
    parser.add_argument("-H", "--hosts", metavar="HOSTS", help="host:slots,... (ssh must work without a password)")
    parser.add_argument("--hostfile", metavar="FILE", help="the same, one `host slots=N` a line")
    parser.add_argument("--nodes", type=positive, metavar="K", help="emulate K nodes on this machine")
    parser.add_argument("--network-interfaces", metavar="NICS", help="eth0,eth1: short for --links gloo:eth0,gloo:eth1")
    parser.add_argument("--start-timeout", type=seconds, default=60, metavar="SECONDS", help="for all daemons (60)")
    parser.add_argument("--grace", type=seconds, default=5, metavar="SECONDS", help="between TERM and KILL (5)")
    parser.add_argument("-x", action="append", default=[], metavar="VAR[=VALUE]", help="variable for all workers")
    parser.add_argument("-v", "--verbose", action="store_true", help="show the daemons' logs and the placement")
    parser.add_argument("--version", action="store_true", help="print the version")
    options = parser.add_argument_group("options of Deft (deft options tells what they mean)")
    for name in names:
        if name not in OURS:
            options.add_argument(
                "--" + name.replace("_", "-"), dest="deft_" + name, metavar="V", help=argparse.SUPPRESS
            )
    for name, instead in retired.items():
        options.add_argument("--" + name.replace("_", "-"), action=Retired, instead=instead, help=argparse.SUPPRESS)
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="COMMAND ...", help="what each worker runs")
    return parser


def positive(text: str) -> int:
    if not re.fullmatch("[0-9]+", text) or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is not 1 or more")
    return int(text)


def seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1
    if not 0 <= value <= DAY_SECONDS:
        raise argparse.ArgumentTypeError(f"{text} is not between 0 and {DAY_SECONDS}")
    return value


def parse_flags(parser: argparse.ArgumentParser, words: list[str]) -> argparse.Namespace:
    given, unknown = parser.parse_known_args(words)
    if not unknown:
        return given
    flag = unknown[0].partition("=")[0]
    if flag.removeprefix("--") in OURS:
        raise UsageError(f"deftrun chooses {flag} itself: leave it out")
    names = [name.removeprefix("deft_").replace("_", "-") for name in vars(given)]
    near = difflib.get_close_matches(flag, [f"--{name}" if len(name) > 2 else f"-{name}" for name in names], 1)
    raise UsageError(f"unknown option {flag}" + (f": did you mean {near[0]}?" if near else ""))


def place(given: argparse.Namespace) -> list[Node]:
    named = given.hosts or given.hostfile
    if given.hosts and given.hostfile:
        raise UsageError("give -H or --hostfile, not both")
    if given.nodes and named:
        raise UsageError("--nodes emulates nodes on this machine: leave -H and --hostfile out")
    if named:
        table = hosts.parse_hosts(given.hosts) if given.hosts else hosts.read_hostfile(given.hostfile)
        return hosts.spread_over_hosts(given.np, table)
    if given.np is None:
        raise UsageError("say how many workers: -np N")
    if given.nodes:
        return hosts.emulate(given.np, given.nodes)
    return [Node(0, "localhost", 0, given.np)]


def deft_options(given: argparse.Namespace) -> dict[str, str]:
    found = {name[5:]: value for name, value in vars(given).items() if name.startswith("deft_") and value is not None}
    if given.network_interfaces:
        if "links" in found:
            raise UsageError("give --links or --network-interfaces, not both")
        found["links"] = ",".join("gloo:" + nic.strip() for nic in given.network_interfaces.split(","))
    return found


def as_variables(flags: dict[str, str]) -> dict[str, str]:
    """For programs that deftrun asks: all users can read the words of a command line, and a token may be among them."""
    return {f"DEFT_{name.upper()}": value for name, value in flags.items()}


def ask_given(environment: dict[str, str]) -> subprocess.CompletedProcess:
    return subprocess.run([program("deft"), "options", "--given"], env=environment, capture_output=True, text=True)


def given_options(flags: dict[str, str]) -> dict[str, str]:
    """What flags, variables and the flag file say, by name. A flag wins over a variable, a variable over the file.

    Daemons and workers refuse wrong variables and a wrong file, and the file may lie on their machines alone. So of
    these this says nothing. A wrong value of a flag is a UsageError.
    """
    environment = {**os.environ, **as_variables(flags)}
    asked = ask_given(environment)
    if asked.returncode != 0:
        check_values(flags)
        asked = ask_given({**environment, "DEFT_FLAG_FILE": ""})
    return {**json.loads(asked.stdout), **flags} if asked.returncode == 0 else flags


def check_values(flags: dict[str, str]) -> None:
    """A wrong value is told under the name that the user wrote. The flag file may be on other machines."""
    known = as_variables({name: value for name, value in flags.items() if name != "flag_file"})
    clean = {name: value for name, value in os.environ.items() if not name.startswith("DEFT_")}
    asked = ask_given({**clean, **known})
    if asked.returncode == 0:
        return
    text = asked.stderr.strip().removeprefix("deft options: ")
    for name in flags:
        text = text.replace(f"DEFT_{name.upper()}:", f"--{name.replace('_', '-')}:")
    raise UsageError(text)


def forwarded(given: argparse.Namespace) -> tuple[dict[str, str], dict[str, str]]:
    """Variables that -x sets for all, and those that other hosts get from this environment besides."""
    explicit: dict[str, str] = {}
    for item in given.x:
        name, equals, value = item.partition("=")
        if not name:
            raise UsageError(f"-x {item}: this names no variable: give -x NAME=VALUE")
        if not equals and name not in os.environ:
            raise UsageError(f"-x {name}: this variable is not set here: give -x {name}=VALUE")
        explicit[name] = value if equals else os.environ[name]
    inherited = {n: v for n, v in os.environ.items() if n in FORWARDED or n.startswith("DEFT_")}
    return explicit, inherited


def parse(words: list[str]) -> Run | None:
    """What to run; None if only a question was answered."""
    known = listed_options("--json")
    parser = make_parser([option["name"] for option in known], listed_options("--retired"))
    given = parse_flags(parser, words)
    if given.version:
        print(subprocess.run([program("deft"), "--version"], capture_output=True, text=True).stdout.strip())
        return None
    command = given.command[1:] if given.command[:1] == ["--"] else given.command
    if not command:
        raise UsageError("no command to run is given")
    explicit, inherited = forwarded(given)
    of_daemons = {option["name"] for option in known if option["daemons_only"]}
    os.environ.update(explicit)
    options = deft_options(given)
    run = Run(command, place(given), options, given_options(options), of_daemons, {**inherited, **explicit})
    run.start_timeout, run.grace, run.verbose = given.start_timeout, given.grace, given.verbose
    return run

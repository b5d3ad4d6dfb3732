"""The programs of the wheel: deft, deftd and deftrun become commands of the environment that it is installed into."""

import os
import signal
import sys
from pathlib import Path

if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # as tools/deftrun does

from deft_launcher import agent, launch

FOLDER = Path(__file__).resolve().parents[1] / "deft/bin"


def _become(name: str) -> None:
    """Replaces this process by the program `name` of the wheel."""
    program = FOLDER / name
    if not program.is_file():
        sys.exit(f"{name}: this package of deft has no programs: install the wheel of scripts/wheel, or use build/bin")
    os.execv(program, [name, *sys.argv[1:]])


def deft() -> None:
    _become("deft")


def deftd() -> None:
    _become("deftd")


def deftrun() -> int:
    os.environ["PATH"] = f"{FOLDER}:{os.environ.get('PATH', os.defpath)}"  # the launcher looks for deftd there
    return agent.main() if sys.argv[1:] == ["--agent"] else launch.main(sys.argv[1:])

"""The program by which `deft optimize` asks the passes of a user: python3 -m deft.ask_passes QUESTION ANSWER FILE...

QUESTION and ANSWER are files of JSON. The answer is {"proposals": [{"pass": NAME, "settings": {...}}, ...]}, or
{"error": TEXT}.
"""

import json
import runpy
import signal
import sys
import traceback
from pathlib import Path

from deft import passes


def main(question: str, answer: str, *files: str) -> None:
    told = json.loads(Path(question).read_text())
    signal.signal(signal.SIGALRM, _too_long)
    signal.setitimer(signal.ITIMER_REAL, max(told["seconds"], 0.001))
    found = _answer(told, files)
    signal.setitimer(signal.ITIMER_REAL, 0)
    Path(answer).write_text(json.dumps(found))


def _answer(told: dict, files: "tuple[str, ...]") -> dict:
    proposals = []
    where = ""
    try:
        for file in files:
            where, before = file, len(passes.registered)
            runpy.run_path(file, run_name="deft_passes")
            if len(passes.registered) == before:
                return {"error": f"{file} registers no pass: put @deft.optimization_pass above a function"}
        for one in passes.registered:
            where = f"pass {one.__name__}"
            # Copies: what one pass does to them is no matter of the next one.
            changes = one(json.loads(json.dumps(told["job"])), dict(told["best"]))
            for change in changes or ():
                if not isinstance(change, dict):
                    return {"error": f"{where} proposes {change!r}: a proposal is a dict of settings"}
                settings = json.loads(json.dumps(change, allow_nan=False))
                proposals.append({"pass": one.__name__, "settings": settings})
    except _TooLong:
        return {"error": f"{where} took longer than the time that the search has left: give it more by --budget"}
    except SystemExit:
        return {"error": f"{where} has called sys.exit(): a pass that has nothing to propose returns nothing"}
    except Exception as error:
        traceback.print_exc()
        return {"error": f"{where} failed: {type(error).__name__}: {error}"}
    return {"proposals": proposals}


class _TooLong(BaseException):
    """Passes may catch exceptions; this is none of theirs."""


def _too_long(number: int, frame: object) -> None:
    raise _TooLong


if __name__ == "__main__":
    main(*sys.argv[1:])

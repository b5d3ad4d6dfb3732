"""Runs scripts in forked ranks, so the modules that all ranks of all scripts import are loaded once.

    python forked_ranks.py MODULE... < jobs      # JSON: a list of [script, the environment of each rank]

It prints JSON: for each job a list of [status, output], one a rank.
"""

import importlib
import json
import os
import runpy
import sys
import tempfile


def main():
    for module in sys.argv[1:]:
        importlib.import_module(module)
    outcomes = []
    for script, environments in json.load(sys.stdin):
        ranks = []
        for environment in environments:
            output = tempfile.TemporaryFile("w+")  # noqa: SIM115  the rank writes to it, too
            if (child := os.fork()) == 0:
                return be_rank(script, environment, output)
            ranks.append((child, output))
        outcomes.append([outcome_of(*rank) for rank in ranks])
    return json.dump(outcomes, sys.stdout)


def be_rank(script, environment, output):
    """The process ends as a Python that was started with the script."""
    os.dup2(output.fileno(), 1)
    os.dup2(output.fileno(), 2)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = [script]
    runpy.run_path(script, run_name="__main__")


def outcome_of(child, output):
    _, status = os.waitpid(child, 0)
    output.seek(0)
    return os.waitstatus_to_exitcode(status), output.read()


if __name__ == "__main__":
    main()

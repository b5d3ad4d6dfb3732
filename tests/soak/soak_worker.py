"""A worker of the soak tests: a fork of the harness, which has imported deft and numpy already.

It trains with sums that it can foresee, and tells the harness by JSON lines of each `step`, and how it ends: `done`,
`error` or `wrong`.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "process"))
from under_test import BUILD

sys.path.insert(0, str(BUILD / "python"))

import deft
import numpy as np

SIZES = (60_000, 1000, 20_000)
SMALL = 500  # elements of a collective
COMPUTE_S = 0.004


class WrongSum(Exception):
    pass


def floats(group: deft.Group, tensor: int) -> np.ndarray:
    from ctypes import c_char

    raw = (c_char * group.bytes(tensor)).from_address(group.data(tensor))
    return np.frombuffer(raw, np.float32)


def check(step: int, what: str, found: np.ndarray, wanted: np.ndarray | float) -> None:
    if not (found == wanted).all():
        raise WrongSum(f"step {step}: {what} holds {found[found != wanted][:3]}")


def tensors(sizes: tuple[int, ...]) -> list[deft.Tensor]:
    last = len(sizes) - 1
    return [deft.Tensor(f"t{i}", deft.FLOAT32, (count,), last - i) for i, count in enumerate(sizes)]


def take_step(session: deft.Session, group: deft.Group, sizes: tuple[int, ...], step: int) -> None:
    """All numbers are whole and small, so that their sums are exact."""
    rank, size, turn = session.rank, session.size, step % 7
    ranks = size * (size + 1) // 2
    session.stage(deft.FORWARD, step)
    time.sleep(COMPUTE_S)
    session.stage(deft.BACKWARD, step)
    for tensor, count in enumerate(sizes):
        pattern = np.arange(count, dtype=np.float32) % 13
        floats(group, tensor)[:count] = pattern * (rank + 1) + turn
        group.ready(tensor, 1, step)
    if step % 4 == 0:
        loss = np.full(SMALL, rank + turn, np.float32)
        session.allreduce("loss", loss.ctypes.data, SMALL, deft.FLOAT32).finish(loss.ctypes.data)
        check(step, "the all-reduced loss", loss, ranks - size + size * turn)
    for tensor, count in enumerate(sizes):
        group.wait(tensor, 1, step)
        pattern = np.arange(count, dtype=np.float32) % 13
        check(step, f"tensor {tensor}", floats(group, tensor)[:count], pattern * ranks + size * turn)


def train(steps: int, sizes: tuple[int, ...], attached: Callable[[], object], stepped: Callable[[], object]) -> None:
    session = deft.open()
    attached()
    group = session.declare("model", tensors(sizes))
    for step in range(steps):
        take_step(session, group, sizes, step)
        stepped()
    session.close()


def work(
    output: int, steps: int, sizes: tuple[int, ...] = SIZES, attached: Callable[[], object] = lambda: None
) -> None:
    """Trains, and tells how that ended. `attached` is called once it has a session."""

    def tell(event: str, **more: object) -> None:
        more |= {"event": event, "at": time.monotonic()}
        os.write(output, (json.dumps(more) + "\n").encode())

    tell("begun")
    try:
        train(steps, sizes, attached, lambda: tell("step"))
        tell("done")
    except deft.DeftError as error:
        tell("error", text=str(error))
    except WrongSum as error:
        tell("wrong", text=str(error))

"""What `deft replay` predicts from traces, beside the traced steps.

Each scheme is predicted from its own traces, and as a what-if from those of the first: another policy, another codec,
NICs of another rate. Every round has a trace of each scheme, and the median of the rounds counts on both sides.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from pathlib import Path

from lab import deft_program
from lab.job import STEPS_AFTER_TRACE, Job
from lab.schemes import Scheme
from lab.traces import without_old_traces

TRACED_STEPS = 16


@dataclass(frozen=True)
class Prediction:
    of: str  # a scheme
    traced: str  # the scheme from whose traces it was predicted
    ms: float
    coarse_ms: float  # by size over bandwidth alone
    measured_ms: float

    @property
    def error(self) -> float:
        return self.ms / self.measured_ms - 1


def check(schemes: list[Scheme]) -> None:
    """ValueError for schemes that `deft replay` cannot make of the first one of Deft."""
    ours = [scheme for scheme in schemes if scheme.is_deft]
    if not ours:
        raise ValueError("--predict needs a scheme of Deft")
    for scheme in ours:
        if scheme.wrapper or scheme.passes > 1 or scheme.free:
            raise ValueError(f"scheme '{scheme.text}': --predict takes policies with options, @K and @2x")
        if scheme.nics != ours[0].nics or _other_options(scheme) != _other_options(ours[0]):
            raise ValueError(
                f"scheme '{scheme.text}': with --predict it may differ from {ours[0].text} by its policy, "
                "compression and @2x alone"
            )
        if scheme.codec != ours[0].codec and "auto" in (scheme.codec, ours[0].codec):
            raise ValueError(
                f"scheme '{scheme.text}': a trace does not say what knapsack would encode; with --predict give it "
                "compression=none or a codec"
            )


@dataclass(frozen=True)
class Traced:
    scheme: Scheme
    folders: list[Path]  # one a round


def trace(job: Job, folder: Path) -> bool:
    """Traces the job's next steps, if it is one of Deft. The files are complete when its daemons have ended.

    Any other job takes as many steps, so that the losses of all stay those of the same steps.
    """
    if not job.scheme.is_deft:
        job.run(0, TRACED_STEPS + STEPS_AFTER_TRACE)
        return False
    job.trace(without_old_traces(folder), TRACED_STEPS)
    return True


class Replays:
    """By `deft replay` of one build."""

    def __init__(self, build: Path):
        self._program = build / "bin" / "deft"
        self.failures: list[str] = []

    def predictions(self, jobs: list[Traced]) -> list[Prediction]:
        """Each job's from its own traces, and from those of the first job."""
        made = []
        for own in jobs:
            measured = self._medians(own, [], "measured_step_us_p50")
            for traced in [own] if own is jobs[0] else [own, jobs[0]]:
                options = what_if_options(traced.scheme, own.scheme)
                said = self._medians(traced, options, "step_us_p50", "coarse_step_us")
                if measured and said:
                    made.append(Prediction(own.scheme.text, traced.scheme.text, *said, *measured))
        return made

    def _medians(self, traced: Traced, what_if: list[str], *keys: str) -> list[float]:
        """Of all rounds, in ms, one a key; none if no trace could be replayed."""
        said = [prediction for folder in traced.folders if (prediction := self._replay(folder, what_if))]
        return [statistics.median(prediction[key] / 1e3 for prediction in said) for key in keys] if said else []

    def _replay(self, folder: Path, what_if: list[str]) -> dict | None:
        try:
            return deft_program.ask(self._program, "replay", folder, *what_if)[0]
        except deft_program.DeftFailed as failure:
            self.failures.append(f"{folder}: {failure}")
            return None


def what_if_options(traced: Scheme, scheme: Scheme) -> list[str]:
    """The options of `deft replay` that make one scheme of the other.

    Another policy would have the codec that the traced job's options give it: under knapsack its plans encode.
    """
    options = []
    if scheme.kind != traced.kind:
        options += ["--policy", scheme.kind]
    if scheme.kind != traced.kind or scheme.codec != traced.codec:
        options += ["--compression", scheme.codec]
    if scheme.speed != traced.speed:
        options += ["--links", f"all={scheme.speed / traced.speed:g}x"]
    return options


def _other_options(scheme: Scheme) -> dict[str, str]:
    return {name: value for name, value in scheme.options if name != "compression"}

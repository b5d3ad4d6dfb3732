"""The results: statistics, the table, JSON and the plot."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from lab.columns import aligned
from lab.forecast import Forecast
from lab.intervals import interval
from lab.job import Block, Score
from lab.predictions import Prediction
from lab.rates import scaled
from lab.schemes import Scheme


def percentile(values: list[float], share: float) -> float:
    """With linear interpolation between neighbours."""
    ordered = sorted(values)
    position = share * (len(ordered) - 1)
    low = int(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)


def _in_json(loss: float) -> float | None:
    """Null if training has diverged: JSON has neither NaN nor infinity."""
    return round(loss, 6) if math.isfinite(loss) else None


@dataclass
class Outcome:
    """All rounds of one scheme (for DDP: of one bucket size)."""

    scheme: Scheme
    blocks: list[Block] = field(default_factory=list)
    accuracy: float | None = None  # on held-out samples
    test_loss: float | None = None
    scores: list[tuple[float, Score]] = field(default_factory=list)  # after each round, with the seconds trained so far
    forecast: Forecast | None = None
    hashes: list[str] = field(default_factory=list)
    traces: list[Path] = field(default_factory=list)  # a folder a round, if they were asked for

    def step_ms(self, share: float = 0.5) -> float:
        return percentile([value for block in self.blocks for value in block.step_ms], share)

    @property
    def mean_ms(self) -> float:
        """The mean time of a step. The median hides a wait that only every k-th step has."""
        return statistics.fmean(value for block in self.blocks for value in block.step_ms)

    def settled_ms(self) -> float:
        """The median without the first of several rounds, in which the first plans are made."""
        later = self.blocks[1:] or self.blocks
        return percentile([value for block in later for value in block.step_ms], 0.5)

    def lockstep_ms(self) -> float:
        """A step's time if every worker waited for the slowest of it, at no other cost."""
        return percentile([value for block in self.blocks for value in block.slowest_ms()], 0.5)

    def added_to_ms(self, base: Outcome) -> float:
        """The time of a step beyond that of `base`."""
        return self._beyond(base, lambda block: percentile(block.step_ms, 0.5))

    def worker_cpu_added_to_ms(self, base: Outcome) -> float:
        """The CPU time of a node's workers in a step beyond that of `base`."""
        return self._beyond(base, lambda block: block.worker_cpu_ms)

    def _beyond(self, base: Outcome, of: Callable[[Block], float]) -> float:
        """The median over the rounds of the difference from `base` in the same round: machines drift."""
        return percentile([of(own) - of(other) for own, other in zip(self.blocks, base.blocks, strict=False)], 0.5)

    def ratio_to(self, base: Outcome) -> tuple[float, float]:
        """The step over that of `base` in the same round: the mean, and half of its 95 % interval. The first of several
        rounds, in which policies find their plans, does not count."""
        ratios = [
            percentile(own.step_ms, 0.5) / percentile(other.step_ms, 0.5)
            for own, other in zip(self.blocks, base.blocks, strict=False)
        ]
        return interval(ratios[1:] or ratios)

    def seconds_to(self, accuracy: float) -> float | None:
        """The seconds of training until this accuracy, on the line between the evaluations around it; None: never."""
        before = (0.0, 0.0)
        for seconds, score in self.scores:
            if score.accuracy >= accuracy:
                if before[0] == 0.0:
                    return seconds  # it was reached somewhere before the first evaluation
                share = (accuracy - before[1]) / (score.accuracy - before[1])
                return before[0] + share * (seconds - before[0])
            before = (seconds, score.accuracy)
        return None

    @property
    def worker_cpu_ms(self) -> float:
        return statistics.fmean(block.worker_cpu_ms for block in self.blocks)

    @property
    def daemon_cpu_ms(self) -> float:
        return statistics.fmean(block.daemon_cpu_ms for block in self.blocks)

    @property
    def loss(self) -> float:
        """The mean over the last ten steps."""
        return statistics.fmean(self.blocks[-1].losses[-10:])

    @property
    def updates_per_step(self) -> float:
        return sum(block.updates for block in self.blocks) / sum(len(block.losses) for block in self.blocks)


@dataclass
class Results:
    outcomes: list[Outcome]  # in the order in which the schemes were named
    rates: list[str] | None
    coverage: float | None
    wanted_accuracy: float | None = None  # of the time to it
    accelerator: bool = False  # compute was replayed: it uses no core, and its losses say nothing
    predictions: list[Prediction] = field(default_factory=list)
    paired: str | None = None  # the scheme whose ratios to all others are told

    @property
    def compute(self) -> Outcome | None:
        """Of workers that train alone."""
        return next((o for o in self.outcomes if o.scheme.kind == "compute"), None)

    @property
    def compute_ms(self) -> float | None:
        return self.compute.step_ms() if self.compute else None

    def ddp_ms(self) -> float | None:
        """The baseline: `ddp`, or else the best DDP with all NICs; with another framework its own distribution."""
        plain = [o.step_ms() for o in self.outcomes if o.scheme.text == "ddp"]
        full = max((o.scheme.nics for o in self.outcomes), default=0)
        others = [
            o.step_ms()
            for o in self.outcomes
            if o.scheme.is_plain_ddp and o.scheme.nics == full and not o.scheme.free and o.scheme.speed == 1
        ]
        own = [o.step_ms() for o in self.outcomes if o.scheme.kind == "own"]
        return min(own or plain or others, default=None)

    @property
    def baseline(self) -> str:
        return "own" if any(outcome.scheme.kind == "own" for outcome in self.outcomes) else "ddp"

    def records(self) -> list[dict]:
        return [self._record(outcome) for outcome in self.outcomes]

    def _record(self, outcome: Outcome) -> dict:
        free = outcome.scheme.free or self.rates is None
        ddp = self.ddp_ms()
        return {
            "scheme": outcome.scheme.text,
            "rate": "none" if free else ",".join(scaled(self.rates[: outcome.scheme.nics], outcome.scheme.speed)),
            "coverage": None if free or self.coverage is None else self.coverage / outcome.scheme.speed,
            "step_ms_p10": round(outcome.step_ms(0.1), 2),
            "step_ms_p50": round(outcome.step_ms(), 2),
            "step_ms_p90": round(outcome.step_ms(0.9), 2),
            f"speedup_vs_{self.baseline}": round(ddp / outcome.step_ms(), 4) if ddp else None,
            "updates_per_step": round(outcome.updates_per_step, 4),
            "cpu_ms_per_step": round(outcome.worker_cpu_ms + outcome.daemon_cpu_ms, 2),
            "loss": None if self.accelerator else _in_json(outcome.loss),
            "accuracy": outcome.accuracy,
            "params_sha256": outcome.hashes,
            "rounds": [[[round(ms, 1) for ms in rank] for rank in block.ranks_ms()] for block in outcome.blocks],
            **self._more(outcome),
        }

    def _more(self, outcome: Outcome) -> dict:
        """Fields that are there if they were asked for."""
        more: dict = {} if outcome.test_loss is None else {"test_loss": _in_json(outcome.test_loss)}
        if self.wanted_accuracy is not None:
            seconds = outcome.seconds_to(self.wanted_accuracy)
            more["time_to_accuracy_s"] = None if seconds is None else round(seconds, 2)
            more["scores"] = [
                {"seconds": round(at, 2), "accuracy": score.accuracy, "test_loss": _in_json(score.loss)}
                for at, score in outcome.scores
            ]
        own = [said for said in self.predictions if said.of == outcome.scheme.text]
        if own:
            more["predictions"] = [
                {"from": p.traced, "ms": p.ms, "coarse_ms": p.coarse_ms, "measured_ms": p.measured_ms} for p in own
            ]
        if outcome.forecast:
            more["forecast_ms"] = round(outcome.forecast.step_ms, 2)
            more["forecast_network_ms"] = round(outcome.forecast.network_ms, 2)
        return more

    def write_json(self, path: str) -> None:
        with open(path, "w") as file:
            file.write("[\n" + ",\n".join(json.dumps(record, allow_nan=False) for record in self.records()) + "\n]\n")


_HEADER = (
    "scheme",
    "step ms",
    "p10-p90",
    "mean",
    "/ compute",
    "/ ddp",
    "speedup",
    "updates",
    "CPU ms worker+daemon",
    "loss",
    "test loss",
    "accuracy",
    "s to accuracy",
    "replicas",
)


def table(results: Results) -> str:
    """One row a scheme; columns that were not asked for are left out."""
    header = tuple(f"/ {results.baseline}" if title == "/ ddp" else title for title in _HEADER)
    rows = [header, *(_row(results, outcome) for outcome in results.outcomes)]
    more = (_forecast_lines, _prediction_lines, _pair_lines, _free_lines)
    return "\n".join([*aligned(rows), *(line for part in more for line in part(results))])


def _row(results: Results, outcome: Outcome) -> tuple[str, ...]:
    step, ddp = outcome.step_ms(), results.ddp_ms()
    return (
        outcome.scheme.label,
        f"{step:.1f}",
        f"{outcome.step_ms(0.1):.0f}-{outcome.step_ms(0.9):.0f}",
        f"{outcome.mean_ms:.1f}",
        f"{step / results.compute_ms:.3f}" if results.compute_ms else "-",
        f"{step / ddp:.3f}" if ddp else "-",
        f"{ddp / step:.2f}x" if ddp else "-",
        f"{outcome.updates_per_step:.3g}",
        f"{outcome.worker_cpu_ms:.0f}+{outcome.daemon_cpu_ms:.0f}",
        "" if results.accelerator else f"{outcome.loss:.4f}",
        "" if outcome.test_loss is None else f"{outcome.test_loss:.4f}",
        "-" if outcome.accuracy is None else f"{100 * outcome.accuracy:.2f}%",
        _time_to_accuracy(results, outcome),
        _replicas(outcome),
    )


def _replicas(outcome: Outcome) -> str:
    if outcome.scheme.kind == "compute":
        return "apart"
    return "equal" if len(set(outcome.hashes)) == 1 else "DIFFER"


def _time_to_accuracy(results: Results, outcome: Outcome) -> str:
    if results.wanted_accuracy is None:
        return ""
    seconds = outcome.seconds_to(results.wanted_accuracy)
    if seconds is None:
        return "not reached"
    return f"{'up to ' if seconds == outcome.scores[0][0] else ''}{seconds:.1f}"


def _forecast_lines(results: Results) -> list[str]:
    """The simulator's step time beside the measured one."""
    rows = [("forecast", "network alone ms", "with Deft's CPU ms", "measured ms", "difference")]
    for outcome in results.outcomes:
        if outcome.forecast:
            measured, said = outcome.settled_ms(), outcome.forecast
            difference = f"{100 * (said.step_ms / measured - 1):+.1f} %"
            rows.append(
                (outcome.scheme.label, f"{said.network_ms:.1f}", f"{said.step_ms:.1f}", f"{measured:.1f}", difference)
            )
    return ["", *aligned(rows)] if len(rows) > 1 else []


def _prediction_lines(results: Results) -> list[str]:
    """What `deft replay` says, beside the traced steps."""
    rows = [("deft replay of", "from the trace of", "predicted ms", "measured ms", "error", "coarse ms", "error")]
    for said in results.predictions:
        rows.append((
            said.of, "itself" if said.of == said.traced else said.traced, f"{said.ms:.1f}", f"{said.measured_ms:.1f}",
            f"{said.error:+.1%}", f"{said.coarse_ms:.1f}", f"{said.coarse_ms / said.measured_ms - 1:+.1%}",
        ))  # fmt: skip
    return ["", *aligned(rows)] if len(rows) > 1 else []


def _pair_lines(results: Results) -> list[str]:
    own = next((outcome for outcome in results.outcomes if outcome.scheme.text == results.paired), None)
    if own is None:
        return []
    rows = [(f"{own.scheme.label} over", "ratio of the same round", "95 % interval", "rounds")]
    for outcome in results.outcomes:
        if outcome is not own:
            ratio, half = own.ratio_to(outcome)
            rounds = max(1, min(len(own.blocks), len(outcome.blocks)) - 1)
            rows.append(
                (outcome.scheme.label, f"{ratio:.3f}", f"{ratio - half:.3f} to {ratio + half:.3f}", str(rounds))
            )
    return ["", *aligned(rows)]


def _free_lines(results: Results) -> list[str]:
    """If the network is free, a step should cost no more than compute, the wait for the slowest worker of the step
    and, if that is taken from compute, the transport's own CPU time."""
    compute = results.compute
    if compute is None:
        return []
    lines = [
        _free_line(outcome, compute, results.accelerator)
        for outcome in results.outcomes
        if outcome.scheme.is_deft and (outcome.scheme.free or results.rates is None)
    ]
    return ["", *lines] if lines else []


def _free_line(outcome: Outcome, compute: Outcome, accelerator: bool) -> str:
    def share(ms: float) -> str:
        return f"{100 * ms / compute.step_ms():+.1f} %"

    added = outcome.added_to_ms(compute)
    text = f"{outcome.scheme.text}, network free: {added:+.1f} ms a step"
    if accelerator:
        return f"{text}, {share(added)} of compute"
    waiting, beyond = compute.lockstep_ms() - compute.step_ms(), added - outcome.daemon_cpu_ms
    return (
        f"{text}; the transport's CPU (the daemon) is {outcome.daemon_cpu_ms:.1f} ms; beyond it {share(beyond)} of "
        f"compute, and {share(beyond - waiting)} beyond the wait for the slowest worker of each step ({waiting:.1f} ms)"
    )


def write_plot(results: Results, path: str, title: str) -> None:
    """Step time a scheme and, if it was measured, test accuracy over the time of training."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    scored = any(outcome.scores for outcome in results.outcomes)
    width = 1.6 + 1.1 * len(results.outcomes)
    figure, axes = pyplot.subplots(
        1, 1 + scored, figsize=(width + 5.5 * scored, 4.2), width_ratios=[width, 5.5][: 1 + scored],
        layout="constrained", squeeze=False,
    )  # fmt: skip
    figure.suptitle(title, fontsize=10)
    _plot_steps(axes[0][0], results)
    if scored:
        _plot_scores(axes[0][1], results)
    for each in axes[0]:
        each.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=140)


def _plot_steps(axes, results: Results) -> None:
    """With the span from p10 to p90 and the line that compute alone would reach."""
    outcomes = results.outcomes
    middle = [o.step_ms() for o in outcomes]
    span = [[m - o.step_ms(0.1) for m, o in zip(middle, outcomes, strict=True)],
            [o.step_ms(0.9) - m for m, o in zip(middle, outcomes, strict=True)]]  # fmt: skip
    bars = axes.bar([o.scheme.text for o in outcomes], middle, yerr=span, capsize=3, color=_colors(outcomes))
    axes.bar_label(bars, [f"{m:.0f}" for m in middle], label_type="center", color="white")
    if results.compute_ms:
        axes.axhline(results.compute_ms, color="#606060", linewidth=1, linestyle="--", label="compute alone")
        axes.legend(frameon=False)
    axes.set_ylabel("step time, ms (p50, p10 to p90)")
    axes.tick_params(axis="x", labelrotation=30)


def _plot_scores(axes, results: Results) -> None:
    for outcome, color in zip(results.outcomes, _colors(results.outcomes), strict=True):
        seconds = [at for at, _ in outcome.scores]
        accuracy = [100 * score.accuracy for _, score in outcome.scores]
        if seconds:
            axes.plot(seconds, accuracy, marker="o", markersize=3, color=color, label=outcome.scheme.text)
    if results.wanted_accuracy is not None:
        axes.axhline(100 * results.wanted_accuracy, color="#606060", linewidth=1, linestyle="--")
    axes.set_xlabel("training, s")
    axes.set_ylabel("test accuracy, %")
    axes.legend(frameon=False)


def _colors(outcomes: list[Outcome]) -> list:
    """Grey for compute, oranges for DDP, blues for Deft: the darker the later."""
    from matplotlib import colormaps

    def family(outcome: Outcome) -> str:
        return "Blues" if outcome.scheme.is_deft else "Oranges" if outcome.scheme.kind in ("ddp", "own") else "Greys"

    families = [family(outcome) for outcome in outcomes]
    shades = []
    for place, name in enumerate(families):
        share = (families[:place].count(name) + 1) / families.count(name)
        shades.append(colormaps[name](0.35 + 0.35 * share))
    return shades

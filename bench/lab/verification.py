"""--verify: forecasts every scheme of Deft from what this run has measured."""

from __future__ import annotations

from pathlib import Path

from lab import forecast, links
from lab.assignment import Training
from lab.job import Job
from lab.layers import Layers
from lab.netns import Nodes
from lab.progress import Progress
from lab.report import Outcome
from lab.schemes import Scheme


class Verification:
    def __init__(self, lab: Nodes, training: Training, accelerator: bool, progress: Progress, logs: Path):
        self._lab, self._training, self._accelerator = lab, training, accelerator
        self._progress, self._logs = progress, logs

    def forecast(
        self,
        outcomes: dict[Scheme, Outcome],
        jobs: dict[Scheme, Job],
        layers: Layers,
        limits: dict[Scheme, list[str] | None],
    ) -> None:
        """Gives each outcome its forecast. `limits`: the rates of the NICs, of which there is one set beside None."""
        simulator = forecast.Simulator(self._training.build / "bin" / "deft")
        ours = [scheme for scheme in outcomes if scheme.is_deft]
        shaped = {limits[scheme] is not None: limits[scheme] for scheme in ours}
        found = {key: self._measured_links(rates, len(jobs) + 100) for key, rates in shaped.items()}
        compute = next(outcome for scheme, outcome in outcomes.items() if scheme.kind == "compute")
        compute.forecast = forecast.Forecast(layers.step_us / 1e3, layers.step_us / 1e3)
        for scheme in ours:
            names = self._training.links_on(self._lab.interfaces(scheme.nics))
            own = [link for link in found[limits[scheme] is not None] if link.name in names]
            cut = jobs[scheme].bucket_bytes()
            measured = forecast.profile(self._training.model, layers, cut, own, scheme.passes)
            outcome = outcomes[scheme]
            outcome.forecast = simulator.forecast(scheme, measured, self._cpu(outcome, compute, layers))

    def _cpu(self, outcome: Outcome, compute: Outcome, layers: Layers) -> forecast.Cpu:
        daemon_ms = 0.0 if self._accelerator else outcome.daemon_cpu_ms  # compute needs no core there
        worker_ms = outcome.worker_cpu_added_to_ms(compute) / self._training.workers
        return forecast.Cpu.measured(outcome.scheme.passes, daemon_ms, worker_ms, layers.update_us / 1e3)

    def _measured_links(self, limits: list[str] | None, number: int) -> list[links.Link]:
        """`number` is the first of as many jobs as there are links."""
        self._progress.stage("measuring an all-reduce on each link")
        self._lab.shape(limits)
        found = links.measure(self._lab, self._training, limits, number, self._logs)
        text = "; ".join(
            f"{link.name} {link.bytes_per_us:.1f} MB/s and {link.latency_us:.0f} us a part" for link in found
        )
        self._progress.event(f"all-reduce{', NICs not shaped' if limits is None else ''}: {text}")
        return found

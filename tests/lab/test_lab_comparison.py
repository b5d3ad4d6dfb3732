"""What bench/compare makes of schemes that fail, with jobs that only pretend to train."""

import pytest
from lab import arguments as command_line
from lab import catalogue, compare
from lab.job import Block, JobFailed, Score
from lab.netns import Loopback
from lab.progress import Progress


class Job:
    """Fails in what `failing` names: (scheme, method) and the number of the call."""

    failing: dict[tuple[str, str], int] = {}
    made: list = []

    def __init__(self, _lab, scheme, _training, _number, _logs):
        self.scheme, self.asked, self.is_stopped = scheme, [], False
        self.made.append(self)

    def _ask(self, what):
        assert not self.is_stopped, f"{self.scheme.text} has been stopped"
        self.asked.append(what)
        if self.failing.get((self.scheme.text, what)) == self.asked.count(what):
            raise JobFailed(f"{self.scheme.text}: no {what}")

    def start(self):
        self._ask("start")

    def run(self, warmup, steps, on_step=None):
        self._ask("run")
        return Block([1.0] * 2 * steps, [0.5] * steps, steps, 1.0, 1.0, 1.0)

    def trace(self, _folder, _steps):
        self._ask("trace")

    def layers(self, _steps):
        self._ask("layers")
        return [{}]

    def score(self):
        self._ask("score")
        return Score(0.5, 1.0)

    def hashes(self):
        self._ask("hashes")
        return ["a", "a"]

    def stop(self):
        self.is_stopped = True


@pytest.fixture
def compared(monkeypatch, tmp_path):
    """Runs a comparison; gives it and its results."""
    monkeypatch.setattr(catalogue, "find_data", lambda *_: None)
    monkeypatch.setattr(compare, "Job", Job)
    monkeypatch.setattr(compare.Comparison, "_prepare", lambda self: setattr(self, "_samples", 1000))
    monkeypatch.setattr(compare.predictions.Replays, "_replay", lambda *_: None)
    monkeypatch.setattr(Job, "failing", {})
    monkeypatch.setattr(Job, "made", [])

    def run(failing: dict, *words: str):
        Job.failing = failing
        arguments = command_line.parser().parse_args(words)
        schemes = command_line.check(arguments)
        with Loopback(2, 2) as lab:
            comparison = compare.Comparison(arguments, schemes, lab, Progress(), tmp_path)
            results = comparison.run()
        return comparison, [outcome.scheme.text for outcome in results.outcomes]

    return run


def test_a_scheme_whose_trace_fails_is_dropped_and_the_others_have_results(compared):
    comparison, left = compared({("fifo", "trace"): 2}, "--predict", "--schemes", "compute,fifo,p3")
    assert left == ["compute", "p3"]
    assert "fifo: no trace" in comparison.failures


def test_nothing_is_asked_of_a_scheme_that_was_dropped(compared):
    more = ["--verify", "--epochs", "1", "--time-to-accuracy", "0.9"]
    comparison, left = compared({("compute", "layers"): 1}, "--schemes", "compute,fifo", *more)
    assert left == ["fifo"]
    assert comparison.failures[0] == "compute: no layers"


@pytest.mark.parametrize("method", ["start", "run", "layers"])
def test_without_compute_there_is_no_forecast_but_all_else(compared, method):
    comparison, left = compared({("compute", method): 1}, "--verify", "--schemes", "compute,fifo")
    assert left == ["fifo"]
    assert comparison.failures[-1].startswith("--verify: compute has failed")

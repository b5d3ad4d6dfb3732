"""bench/optimize: when a search counts as near the best, and one comparison of a small job as a whole."""

import json
import math
import random
from pathlib import Path

import pytest

PROGRAM = Path(__file__).resolve().parents[2] / "build/bench/search_bench"


@pytest.fixture(scope="module")
def optimize(load):
    return load("bench/optimize")


def run_of(optimize, *times):
    return optimize.Run([optimize.Trial({"n": i}, us, i / 10) for i, us in enumerate(times, 1)], 9.0)


def test_a_search_is_near_with_the_first_trial_whose_whole_replay_is(optimize):
    whole = {1: 200.0, 2: 110.0, 4: 101.0, 5: 100.0}
    run = optimize.judge(
        run_of(optimize, 200.0, 100.5, 150.0, 100.4, 99.0), 100.0, lambda settings: whole[settings["n"]]
    )
    assert (run.near, run.near_s) == (4, 0.4), "the second looked near in a few steps"
    assert run.gap == 0.0


def test_a_search_that_is_never_near_says_so(optimize):
    run = optimize.judge(run_of(optimize, 0.0, 150.0, 160.0), 100.0, lambda settings: 150.0)
    assert run.near is None and run.near_s is None
    assert run.gap == pytest.approx(0.5)
    assert optimize.middle([3, None, None]) is None
    assert optimize.middle([3, 5, None]) == 5


def test_the_grid_varies_what_a_policy_uses(optimize):
    start = {"policy": "fifo", "bucket_bytes": 0, "partition_bytes": 1, "credit_bytes": 2}
    settings = list(optimize.grid(start, 4))
    assert len({json.dumps(one) for one in settings}) == len(settings)
    fifo = [one for one in settings if one["policy"] == "fifo"]
    assert {one["partition_bytes"] for one in fifo} == {1} and 0 in {one["bucket_bytes"] for one in fifo}
    parts = {one["partition_bytes"] for one in settings if one["policy"] == "bytescheduler"}
    assert parts == {64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20}


def test_a_comparison_of_a_small_job(optimize, tmp_path, capsys):
    if not PROGRAM.exists():
        pytest.skip("this build has no benchmarks")
    drawn = random.Random(1)
    buckets = [
        {"name": f"b{i}", "bytes": 4 * drawn.randrange(10_000, 100_000), "forward_us": 300.0, "backward_us": 600.0}
        for i in reversed(range(12))
    ]
    profile, rows = tmp_path / "profile.json", tmp_path / "rows.json"
    profile.write_text(json.dumps({"model": "small", "source": "drawn", "buckets": buckets, "links": []}))
    words = ["--profile", str(profile), "--coverages", "1", "--cases", "one bucket", "--nodes", "2", "--grid-step", "8"]
    assert optimize.main([*words, "--trials", "5", "--seeds", "1", "--json", str(rows)]) == 0
    (row,) = json.loads(rows.read_text())
    assert row["start_ms"] > row["best_ms"] > 0
    assert row["search"]["gap"] < 0.02 and row["search"]["near"] is not None
    assert row["random"]["trials"] == 5 and not math.isnan(row["random"]["gap"])
    assert "| one bucket | 1 |" in capsys.readouterr().out

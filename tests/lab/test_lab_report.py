import json

import matplotlib
import pytest
from lab.forecast import Forecast
from lab.job import Block, Score
from lab.predictions import Prediction
from lab.report import Outcome, Results, percentile, table, write_plot
from lab.schemes import parse

FIELDS = ["scheme", "rate", "coverage", "step_ms_p10", "step_ms_p50", "step_ms_p90", "speedup_vs_ddp"]
FIELDS += ["updates_per_step", "cpu_ms_per_step", "loss", "accuracy", "params_sha256", "rounds"]


def outcome(text, step_ms, hashes=("a", "a"), daemon=0.0):
    made = Outcome(parse(text, 2), hashes=list(hashes), accuracy=0.5)
    for shift in (0, 1):
        made.blocks.append(Block([step_ms + shift] * 4, [2.0, 1.0], 2.0, 100.0, daemon))  # two ranks, two steps
    return made


@pytest.fixture
def results():
    outcomes = [
        outcome("compute", 100, "ab"),
        outcome("ddp", 200),
        outcome("fifo@1", 150, daemon=7),
        outcome("fifo@free", 110, daemon=7),
    ]
    return Results(outcomes, ["100kbit", "200kbit"], 1.0)


def test_percentiles_lie_between_the_values():
    assert percentile([3, 1, 2], 0.5) == 2
    assert percentile([1, 2], 0.5) == 1.5
    assert percentile([5], 0.9) == 5
    assert percentile(list(range(101)), 0.9) == 90


def test_records_have_the_fields_that_scripts_rely_on(results, tmp_path):
    results.write_json(str(tmp_path / "out.json"))
    records = json.loads((tmp_path / "out.json").read_text())
    assert [list(record) for record in records] == [FIELDS] * 4
    compute, ddp, one_nic, free = records
    assert compute["params_sha256"] == ["a", "b"]
    assert ddp["rate"] == "100kbit,200kbit"
    assert one_nic["rate"] == "100kbit"
    assert one_nic["step_ms_p50"] == 150.5
    assert one_nic["speedup_vs_ddp"] == pytest.approx(200.5 / 150.5, abs=1e-4)
    assert one_nic["updates_per_step"] == 1
    assert one_nic["cpu_ms_per_step"] == 107
    assert one_nic["rounds"] == [[[150, 150], [150, 150]], [[151, 151], [151, 151]]]
    assert (free["rate"], free["coverage"]) == ("none", None)


def test_without_ddp_there_is_no_speedup():
    assert Results([outcome("fifo", 10)], None, None).records()[0]["speedup_vs_ddp"] is None


def test_the_table_says_when_replicas_differ(results):
    assert "DIFFER" not in table(results)
    results.outcomes[2].hashes = ["a", "b"]
    assert "DIFFER" in table(results)


def test_a_wait_of_some_steps_shows_in_the_mean(results):
    results.outcomes[2].blocks[0].step_ms = [150.0, 150.0, 150.0, 950.0]
    row = next(line for line in table(results).splitlines() if line.startswith("fifo@1")).split()
    median, mean = float(row[row.index("fifo@1") + 1]), float(row[row.index("fifo@1") + 3])
    assert (median, mean) == (151.0, 250.5)


def test_a_free_network_is_judged_by_the_transports_cpu_time(results):
    last = table(results).splitlines()[-1]
    assert last.startswith("fifo@free, network free: +10.0 ms a step")
    assert "+3.0 %" in last


def test_what_was_replayed_has_no_loss_and_pays_for_no_transport(results):
    results.accelerator = True
    assert "loss" not in table(results)
    assert results.records()[0]["loss"] is None
    assert "fifo@free, network free: +10.0 ms a step, +10.0 % of compute" in table(results)


def test_a_forecast_is_of_the_rounds_after_the_first(results):
    results.outcomes[2].forecast = Forecast(302.0, 301.0)
    assert " 151.0 " in table(results) and "+100.0 %" in table(results)


def test_what_a_free_network_adds_is_taken_round_by_round(results):
    compute, free = results.outcomes[0], results.outcomes[3]
    compute.blocks[1].step_ms = [1000.0] * 4  # a round in which the machine was slow
    free.blocks[1].step_ms = [1012.0] * 4
    assert table(results).splitlines()[-1].startswith("fifo@free, network free: +11.0 ms a step")


def test_the_workers_cpu_beyond_computes_is_taken_round_by_round(results):
    compute, free = results.outcomes[0], results.outcomes[3]
    free.blocks[0].worker_cpu_ms = 105.0  # compute's: 100
    compute.blocks[1].worker_cpu_ms, free.blocks[1].worker_cpu_ms = 1000.0, 1009.0
    assert free.worker_cpu_added_to_ms(compute) == 7


def test_the_wait_for_the_slowest_worker_is_told_apart(results):
    for block in results.outcomes[0].blocks:
        block.step_ms = [98.0, 98.0, 98.0, 102.0]  # the second rank's second step is slow
    assert results.outcomes[0].lockstep_ms() == 100
    last = table(results).splitlines()[-1]
    assert (
        "beyond it +5.6 % of compute, and +3.6 % beyond the wait for the slowest worker of each step (2.0 ms)" in last
    )


def test_pairs_are_of_the_same_round_and_not_of_the_first(results):
    fifo, ddp = results.outcomes[2], results.outcomes[1]
    for ours, theirs in ((900.0, 100.0), (110.0, 100.0), (230.0, 200.0)):
        fifo.blocks.append(Block([ours] * 4, [2.0, 1.0], 2.0, 100.0, 0.0))
        ddp.blocks.append(Block([theirs] * 4, [2.0, 1.0], 2.0, 100.0, 0.0))
    del fifo.blocks[:2], ddp.blocks[:2]
    ratio, half = fifo.ratio_to(ddp)
    assert ratio == pytest.approx(1.125)
    assert half == pytest.approx(12.706 * 0.025)  # two values: 1.1, 1.15
    assert "over" not in table(results)
    results.paired = "fifo@1"
    assert "1.125" in next(line for line in table(results).splitlines() if line.startswith("ddp ") and "to" in line)


def test_a_scheme_with_faster_nics_says_its_own_rate(results):
    results.outcomes.append(outcome("fifo@2x", 120))
    assert results.records()[-1]["rate"] == "200kbit,400kbit"
    assert results.records()[-1]["coverage"] == 0.5


def test_predictions_stand_below_the_table_and_in_the_record(results):
    results.predictions = [Prediction("fifo@1", "fifo@1", 99.0, 80.0, 100.0)]
    assert any("itself" in line and "-1.0%" in line and "-20.0%" in line for line in table(results).splitlines())
    assert results.records()[2]["predictions"] == [
        {"from": "fifo@1", "ms": 99.0, "coarse_ms": 80.0, "measured_ms": 100.0}
    ]


def test_training_that_diverged_has_a_loss_of_null(results, tmp_path):
    diverged = results.outcomes[1]
    diverged.blocks[-1].losses = [float("nan")]
    diverged.test_loss = float("inf")
    results.wanted_accuracy = 0.6
    diverged.scores = [(10.0, Score(0.1, float("nan")))]
    results.write_json(str(tmp_path / "out.json"))

    def refuse(word):
        raise AssertionError(f"{word} is no JSON")

    record = json.loads((tmp_path / "out.json").read_text(), parse_constant=refuse)[1]
    assert record["loss"] is None and record["test_loss"] is None and record["scores"][0]["test_loss"] is None
    assert "nan" in table(results)


@pytest.mark.parametrize("name", ["plot.png", "plot.svg"])
def test_the_plot_is_written(results, tmp_path, name):
    write_plot(results, str(tmp_path / name), "title")
    assert (tmp_path / name).stat().st_size > 2000


def test_the_plot_shows_accuracy_over_time_where_it_was_measured(results, tmp_path, monkeypatch):
    monkeypatch.setitem(matplotlib.rcParams, "svg.fonttype", "none")  # text stays text
    write_plot(results, str(tmp_path / "without.svg"), "title")
    results.outcomes[1].scores = [(10.0, Score(0.5, 1.0)), (20.0, Score(0.75, 0.5))]
    write_plot(results, str(tmp_path / "with.svg"), "title")
    assert "test accuracy" not in (tmp_path / "without.svg").read_text()
    assert "test accuracy" in (tmp_path / "with.svg").read_text()


def test_records_have_each_rounds_accuracy_where_it_was_asked_for(results):
    results.wanted_accuracy = 0.6
    results.outcomes[1].scores = [(10.0, Score(0.5, 1.0)), (20.0, Score(0.75, 0.5))]
    record = results.records()[1]
    assert record["time_to_accuracy_s"] == 14
    assert [score["seconds"] for score in record["scores"]] == [10, 20]
    assert record["scores"][1] == {"seconds": 20, "accuracy": 0.75, "test_loss": 0.5}

"""bench/side_by_side: rows of what both trees know, medians of the rounds' ratios, and a status that tells a loss."""

import json
import sys
from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def side_by_side(load):
    return load("bench/side_by_side")


def tree_with(folder: Path, times: dict[str, float]) -> Path:
    """A tree whose plan_bench takes these times."""
    program = folder / "build/bench/plan_bench"
    program.parent.mkdir(parents=True)
    rows = json.dumps({"benchmarks": [{"name": name, "cpu_time": time} for name, time in times.items()]})
    program.write_text(f"#!/bin/sh\nfor word; do out=${{word#--benchmark_out=}}; done\ncat >$out <<'E'\n{rows}\nE\n")
    program.chmod(0o755)
    return folder


@pytest.mark.parametrize(("time", "status"), [(10.0, 0), (10.1, 0), (10.5, 1), (9.0, 0)])
def test_a_program_that_became_slower_is_told(side_by_side, tmp_path, monkeypatch, capsys, time, status):
    old = tree_with(tmp_path / "old", {"plan/20": 10.0, "plan/200": 20.0, "gone": 1.0})
    new = tree_with(tmp_path / "new", {"plan/20": time, "plan/200": 2 * time, "added": 1.0})
    out = tmp_path / "out.json"
    words = ["side_by_side", str(old), str(new), "--only", "plan", "--rounds", "2", "--json", str(out)]
    monkeypatch.setattr(sys, "argv", words)
    assert side_by_side.main() == status
    rows = json.loads(out.read_text())
    assert [(row["case"], row["old"]) for row in rows] == [("plan/20", 10.0), ("plan/200", 20.0)]
    assert [row["ratio"] for row in rows] == pytest.approx([time / 10, time / 10])
    assert f"judged: plan_bench{'':<30} {time / 10:.3f}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--only", "pln_bench"], "--only pln_bench: no program"),
        (["--rounds", "0"], "'0' is no whole number from 1 on"),
    ],
)
def test_what_compares_nothing_is_no_success(side_by_side, tmp_path, monkeypatch, capsys, words, said):
    old, new = (tree_with(tmp_path / name, {"plan/20": 10.0}) for name in ("old", "new"))
    monkeypatch.setattr(sys, "argv", ["side_by_side", str(old), str(new), *words])
    with pytest.raises(SystemExit) as ended:
        side_by_side.main()
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


def test_trees_without_a_common_case_are_no_success(side_by_side, tmp_path, monkeypatch):
    old, new = tree_with(tmp_path / "old", {"plan/20": 10.0}), tree_with(tmp_path / "new", {"plan/21": 10.0})
    monkeypatch.setattr(sys, "argv", ["side_by_side", str(old), str(new), "--only", "plan"])
    with pytest.raises(SystemExit, match="no case in common"):
        side_by_side.main()


def test_a_ratio_is_the_median_of_the_rounds_and_not_of_the_times(side_by_side):
    pairs = side_by_side.Pairs()
    for old, new in ((10.0, 11.0), (100.0, 110.0), (1.0, 50.0)):  # the machine's speed changes from round to round
        pairs.add("plan_bench", {"plan": old}, {"plan": new})
    assert pairs.judged() == {"plan_bench": pytest.approx(1.1)}


def test_a_scheme_whose_step_became_slower_is_told_whatever_the_cpu_times_are(side_by_side):
    pairs = side_by_side.Pairs()
    pairs.add("step", {"fifo": 1.0, "p3": 1.0}, {"fifo": 1.5, "p3": 1.0})
    pairs.add("CPU", {"fifo": 30.0, "p3": 30.0, "compute": 8.0}, {"fifo": 30.0, "p3": 30.0, "compute": 8.0})
    assert pairs.judged() == {"step fifo": 1.5, "step p3": 1.0, "CPU": 1.0}


def test_a_tree_that_is_not_built_is_told(side_by_side, tmp_path):
    with pytest.raises(SystemExit, match="is not built"):
        side_by_side.run(tmp_path, "plan_bench")

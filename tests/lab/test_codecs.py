"""bench/codecs: the sums are the codecs' own, nothing is lost, and the statistics are right. bench/compress_torch."""

import dataclasses
import json
import math
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from lab import codec_arguments
from lab.codec_arguments import codec_names
from lab.codec_grid import MODELS, GridRun, _row, train
from lab.codec_sums import CodecSums
from lab.half_precision import LossScale
from lab.intervals import interval

PROGRAM = Path(__file__).resolve().parents[2] / "bench/codecs"
SHAPES = [torch.Size([100, 64]), torch.Size([64]), torch.Size([3, 5])]  # the first one alone is encoded


def gradients(nodes: int, seed: int = 1) -> list[list[torch.Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    return [[torch.randn(shape, generator=generator) for shape in SHAPES] for _ in range(nodes)]


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """As in bench/codecs: for models of this size a second one only waits, and takes as much of the processors."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_without_a_codec_sums_are_exact():
    sums, own = CodecSums("none", SHAPES, 2), gradients(2)
    for total, first, second in zip(sums.add(own, 0), *own, strict=True):
        assert torch.equal(total, first + second)
    assert sums.wire_bytes == 4 * sum(shape.numel() for shape in SHAPES)


@pytest.mark.parametrize("codec", ["bf16", "int8", "int4", "int2", "efsignsgd", "topk/ratio=0.05"])
@pytest.mark.parametrize("nodes", [2, 3])
def test_what_was_applied_and_the_residuals_are_the_sum_of_all_gradients(codec, nodes):
    sums = CodecSums(codec, SHAPES, nodes)
    assert sums.encoded == [0]
    brought, applied = torch.zeros(SHAPES[0]), torch.zeros(SHAPES[0])
    for generation in range(20):
        own = gradients(nodes, seed=generation)
        total = sums.add(own, generation)
        brought += sum(tensors[0] for tensors in own)
        applied += total[0]
        assert torch.equal(total[1], sum(tensors[1] for tensors in own)), "a vector is never rounded"
    kept = sum(sums.residuals(0)).reshape(SHAPES[0])
    assert kept.abs().max() > 0
    torch.testing.assert_close(applied + kept, brought, rtol=1e-4, atol=1e-3)


# Two matrices of 100 x 64 and 64 x 48, in turn one factor of each, or both at once.
@pytest.mark.parametrize(("codec", "turns"), [("lowrank/rank=2", 2), ("lowrank/rank=2,method=powersgd", 1)])
@pytest.mark.parametrize("nodes", [2, 3])
def test_matrices_travel_as_factors_and_nothing_is_lost(codec, turns, nodes):
    shapes = [torch.Size([100, 64]), torch.Size([64]), torch.Size([64, 12, 2, 4])]
    sums = CodecSums(codec, shapes, nodes)
    assert sums.encoded == [0, 2]
    brought, applied = [torch.zeros(shape) for shape in shapes], [torch.zeros(shape) for shape in shapes]
    generator = torch.Generator().manual_seed(1)
    for generation in range(20):
        own = [[torch.randn(shape, generator=generator) for shape in shapes] for _ in range(nodes)]
        for so_far, *of_nodes in zip(brought, *own, strict=True):
            so_far += sum(of_nodes)
        for so_far, total in zip(applied, sums.add(own, generation), strict=True):
            so_far += total
    assert sums.wire_bytes == 20 * 4 * (64 + 2 * ((100 + 64) + (64 + 96)) // turns)
    torch.testing.assert_close(applied[1], brought[1])
    for index in sums.encoded:
        kept = sum(sums.residuals(index))
        assert kept.abs().max() > 0
        torch.testing.assert_close(applied[index] + kept, brought[index], rtol=1e-4, atol=1e-3)


def test_a_matrix_that_factors_do_not_make_smaller_travels_as_it_is():
    square = [torch.Size([64, 64])]  # 32 x 64 values for each of two factors
    sums = CodecSums("lowrank/rank=32", square, 2)
    own = [[torch.randn(square[0])] for _ in range(2)]
    assert torch.equal(sums.add(own, 0)[0], own[0][0] + own[1][0])
    assert sums.wire_bytes == 4 * 64 * 64
    with pytest.raises(ValueError, match="rank"):
        CodecSums("lowrank/rank=0", [], 2)


def test_commas_separate_codecs_and_their_parameters():
    assert codec_names("none,lowrank/rank=2,method=acp,int8") == ["none", "lowrank/rank=2,method=acp", "int8"]


def test_the_command_line_offers_the_models_of_the_grid():
    assert list(MODELS) == list(codec_arguments.MODELS)


def test_fewer_bytes_are_counted():
    sums = CodecSums("int8", SHAPES, 2)
    sums.add(gradients(2), 0)
    assert 4 * (64 + 15) + 6400 < sums.wire_bytes < 4 * (64 + 15) + 6400 * 1.03


def test_an_unknown_codec_is_named_with_the_nearest():
    with pytest.raises(ValueError, match=r"imt8.*int8"):
        CodecSums("imt8", SHAPES, 2)


def test_the_interval_is_students():
    mean, half = interval([1.0, 2.0, 3.0, 4.0])
    assert mean == 2.5
    assert half == pytest.approx(3.182 * 1.2909944 / 2, rel=1e-5)
    assert interval([1.0])[1] == math.inf


def test_runs_that_diverge_are_counted_and_in_no_mean():
    good = {"accuracy": 80.0, "loss": 0.5, "wire_bytes": 100.0}
    bad = {"accuracy": 0.0, "loss": math.inf, "wire_bytes": 100.0}
    row = _row("int8", "fresh", [good, {**good, "accuracy": 82.0}, bad, good], [good, good, good, bad])
    assert "81.00 %" in row and "+1.00" in row and "inf" not in row and "nan" not in row, row
    assert row.endswith("  1, 1 of 4"), row
    assert "no pair" in _row("int8", "fresh", [bad], [good])


def test_a_run_repeats_exactly():
    run = GridRun("mlp", "none", "fresh", 1, 5, 2, 32, "sgd", 0.05, "cosine")
    assert train(run) == train(run)


def test_the_result_is_the_mean_of_the_last_evaluations():
    last = GridRun("mlp", "none", "fresh", 1, 15, 2, 32, "sgd", 0.05, "constant")
    before = dataclasses.replace(last, steps=5)  # at a constant rate it is the same training, ten steps shorter
    both, ends = train(dataclasses.replace(last, evaluations=2)), [train(last), train(before)]
    for key in ("accuracy", "loss"):
        assert ends[0][key] != ends[1][key]
        assert both[key] == pytest.approx((ends[0][key] + ends[1][key]) / 2)


def test_a_scale_of_the_loss_skips_what_is_not_finite():
    scale, good = LossScale(), (torch.ones(3), torch.zeros(2))
    assert scale.accepts([good, good]) and scale.factor == 65536
    assert not scale.accepts([good, (torch.ones(3), torch.tensor([1.0, math.inf]))]) and scale.factor == 32768
    assert all(scale.accepts([good]) for _ in range(1999)) and scale.factor == 32768
    assert scale.accepts([good]) and scale.factor == 65536, "the step that was skipped began the count anew"


def test_half_precision_trains_about_as_full_precision_does():
    full = GridRun("mlp", "int8", "fresh", 1, 20, 2, 32, "sgd", 0.02, "cosine")
    half = dataclasses.replace(full, precision="float16")
    trained, reference = train(half), train(full)
    assert trained != reference, "the forward is rounded"
    assert trained["loss"] == pytest.approx(reference["loss"], rel=0.01)


@pytest.fixture
def program(load, monkeypatch, capsys):
    """Runs a program of bench/ in this process, which has imported PyTorch: its status, and what it says."""
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        monkeypatch.setenv(name, "1")  # the program sets them, too

    def run(*words) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", [str(word) for word in words])
        status = load(f"bench/{Path(words[0]).name}").main()
        return status, *capsys.readouterr()

    return run


def test_the_table_and_the_file_of_finished_runs(tmp_path, program):
    file = tmp_path / "runs"
    command = [PROGRAM, "--model", "mlp", "--steps", "4", "--seeds", "2", "--results", file, "--dates", "fresh,1:2+1"]
    first = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    lines = file.read_text().splitlines()
    assert len(lines) == 2 * 3 * 2 and len({json.dumps(json.loads(line)["run"]) for line in lines}) == 12
    seeds = [json.loads(line)["run"]["seed"] for line in lines]
    assert seeds == sorted(seeds), "a grid that is cut off has whole pairs"
    assert program(*command)[:2] == (0, first)
    assert file.read_text().splitlines() == lines, "what is known is not run again"
    assert len(first.splitlines()) == 2 + 6
    status, _, error = program(PROGRAM, "--dates", "soon")
    assert status == 2 and "'soon' is no case" in error
    status, _, error = program(*command, "--precision", "float16")
    assert status == 2 and "--dates 1:2+1 with --precision float16" in error
    status, _, error = program(PROGRAM, "--steps", "20", "--evaluations", "3")
    assert status == 2 and "--evaluations 3: 20 steps have room for fewer" in error


def test_the_table_beside_torch_has_a_row_for_each_codec(program):
    names = ["bf16", "fp16", "int8", "topk/ratio=0.02"]
    status, shown, _ = program("compress_torch", "--megabytes", "1", "--rounds", "1", "--codecs", ",".join(names))
    assert status == 0
    rows = [line.split() for line in shown.splitlines()[2:]]
    assert [row[0] for row in rows] == names
    assert all(float(number) > 0 for row in rows for number in row[1:])

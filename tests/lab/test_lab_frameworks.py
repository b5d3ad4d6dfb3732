"""bench/compare with TensorFlow and MXNet."""

import argparse
import json

import pytest
from lab import arguments as command_line
from lab.frameworks import LAYERS, Place
from lab.schemes import check_framework, parse_list
from lab_commands import ROOT, run_compare

BUILT = (ROOT / "build/bin/deftd").exists() and (ROOT / "build/python/deft/mxnet").exists()


@pytest.mark.skipif(not BUILT, reason="deftd or the plugins are not built")
@pytest.mark.parametrize(
    ("framework", "schemes"), [("tensorflow", "own,fifo"), ("mxnet", "compute,own,bytescheduler,knapsack")]
)
def test_a_framework_trains_the_same_by_its_own_distribution_and_through_deft(
    emulated, fashion_mnist, tmp_path, framework, schemes
):
    if not (ROOT / f".venv-{framework}/bin/python").exists():
        pytest.skip(f"there is no .venv-{framework}: run scripts/setup test")
    out = tmp_path / "out.json"
    quick = ("--model", "mlp", "--steps", "3", "--rounds", "1", "--batch", "32", "--nics", "1", "--rate", "200mbit")
    done = run_compare("--framework", framework, *quick, "--schemes", schemes, "--accuracy", "--json", out)
    assert done.returncode == 0, done.stderr
    records = {record["scheme"]: record for record in json.loads(out.read_text())}
    assert list(records) == schemes.split(",")
    for scheme in set(records) - {"compute"}:
        record = records[scheme]
        assert len(record["params_sha256"]) == 2 and len(set(record["params_sha256"])) == 1
        rounding = 5e-3 if scheme == "knapsack" else 1e-4  # knapsack encodes from its first launch on
        assert record["loss"] == pytest.approx(records["own"]["loss"], abs=rounding)
        assert record["accuracy"] == pytest.approx(records["own"]["accuracy"], abs=2e-3)
        assert record["updates_per_step"] == 1 and record["speedup_vs_own"] > 0
    if "compute" in records:
        assert len(set(records["compute"]["params_sha256"])) == 2


@pytest.mark.parametrize(
    ("framework", "schemes", "says"),
    [
        ("torch", "own", "PyTorch has ddp"),
        ("mxnet", "ddp", "has `own` instead"),
        ("tensorflow", "fifo-accumulate-2", "adds up no gradients"),
        ("tensorflow", "own:bucket_bytes=1MB", "has no options"),
    ],
)
def test_schemes_that_a_framework_does_not_have(framework, schemes, says):
    with pytest.raises(ValueError, match=says):
        check_framework(parse_list(schemes, 2), framework)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--model", "gpt"], "with mxnet there are cnn, vgg, mlp"),
        (["--model", "cnn", "--verify"], "goes without"),
    ],
)
def test_options_that_a_framework_does_not_have(monkeypatch, words, says):
    monkeypatch.setattr(command_line, "interpreter", lambda framework: ROOT)
    given = command_line.parser().parse_args(["--framework", "mxnet", *words])
    with pytest.raises(ValueError, match=says):
        command_line.check(given)


def test_a_framework_that_is_not_installed_is_an_error_with_the_command(monkeypatch):
    monkeypatch.setattr(command_line, "interpreter", lambda framework: ROOT / "nowhere/bin/python")
    given = argparse.Namespace(**vars(command_line.parser().parse_args(["--framework", "mxnet"])))
    with pytest.raises(ValueError, match="run scripts/setup test"):
        command_line.check(given)


def test_processes_of_a_frameworks_own_distribution_find_each_other():
    place = Place(["10.0.0.1", "10.0.0.2"], 5000, workers=2)
    config = json.loads(place.environment("tensorflow", 3)["TF_CONFIG"])
    assert config["cluster"]["worker"] == ["10.0.0.1:5000", "10.0.0.1:5001", "10.0.0.2:5000", "10.0.0.2:5001"]
    assert config["task"] == {"type": "worker", "index": 3}
    assert place.helpers("tensorflow") == []
    roles = [(node, variables["DMLC_ROLE"]) for node, variables in place.helpers("mxnet")]
    assert roles == [(0, "scheduler"), (0, "server"), (1, "server")]
    worker = place.environment("mxnet", 3)
    assert (worker["DMLC_ROLE"], worker["DMLC_NODE_HOST"], worker["DMLC_NUM_WORKER"]) == ("worker", "10.0.0.2", "4")


def test_models_are_those_of_torch():
    from lab.models import MAKERS
    from torch import nn

    for name, layers in LAYERS.items():
        kinds = {nn.Conv2d: "conv", nn.MaxPool2d: "pool", nn.Linear: "dense"}
        modules = [module for module in MAKERS[name]() if type(module) in kinds]
        widths = [getattr(module, "out_channels", getattr(module, "out_features", None)) for module in modules]
        expected = [(kinds[type(module)], *filter(None, [width])) for module, width in zip(modules, widths)]
        assert [tuple(layer) for layer in layers] == expected

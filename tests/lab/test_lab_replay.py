"""A replayed model: the times and the gradients of its layers."""

import time

import pytest

torch = pytest.importorskip("torch")
from lab.datasets import loss as loss_of  # noqa: E402
from lab.layer_times import Watch  # noqa: E402
from lab.layers import Layers, LayerTensor, medians  # noqa: E402
from lab.replay import Blank, Replay, chain  # noqa: E402

# A first layer of two tensors, of which backward makes one later, and a last one; in microseconds.
LAYERS = Layers(
    [
        LayerTensor("last.weight", 24, 30_000, 40_000),
        LayerTensor("first.bias", 8, 10_000, 60_000),
        LayerTensor("first.weight", 24, 10_000, 90_000),
    ],
    forward_us=50_000,
    backward_us=100_000,
    other_us=5_000,
    update_us=1_000,
)


def replayed(rank=0):
    model = torch.nn.Module()
    model.last = torch.nn.Linear(3, 2, bias=False)
    model.first = torch.nn.Linear(3, 2)
    return Replay(model, LAYERS, rank)


def trained(model, watch, steps):
    inputs, targets = Blank(10).batch(None)
    seen = []
    for _ in range(steps):
        model.zero_grad()
        watch.begin()
        watch.forward()
        loss = loss_of(model(inputs), targets)
        watch.backward()
        loss.backward()
        watch.update()
        seen.append(watch.end())
    return medians(seen)


def test_a_chain_has_the_times_that_were_measured():
    # What belongs to no layer, before the first and behind the last gradient, comes first.
    first_s, spans = chain(LAYERS)
    assert first_s == pytest.approx(0.005 + 0.010 + 0.010)
    assert [names for names, *_ in spans] == [["first.bias", "first.weight"], ["last.weight"]]
    assert [times for _, *times in spans] == [pytest.approx([0.020, 0.050]), pytest.approx([0.020, 0.040])]


def test_layers_take_their_time_and_no_core():
    model = replayed()
    cpu, began = time.process_time(), time.perf_counter()
    seen = trained(model, Watch(model), 5)
    assert time.process_time() - cpu < 0.5 * (time.perf_counter() - began)
    assert seen.forward_us >= 65_000 and seen.backward_us >= 90_000
    needed = {tensor.name: tensor.needed_us for tensor in seen.tensors}
    assert needed["layers.0.part0"] == needed["layers.0.part1"] <= needed["layers.1.part0"] - 20_000
    assert (seen.tensors[0].name, seen.tensors[0].bytes) == ("layers.1.part0", 24)
    assert all(t.ready_us >= least for t, least in zip(seen.tensors, (40_000, 90_000, 90_000), strict=True))


def test_a_ranks_gradients_are_its_own_and_the_same_in_every_step():
    inputs, targets = Blank(10).batch(None)

    def gradients(model):
        model.zero_grad()
        loss_of(model(inputs), targets).backward()
        return [p.grad.clone() for p in model.parameters()]

    models = [replayed(rank) for rank in (0, 0, 1)]
    assert [p.numel() for p in models[0].parameters()] == [2, 6, 6]
    once, again, other = (gradients(model) for model in models)
    assert all(torch.equal(a, b) for a, b in zip(once, again, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(once, gradients(models[0]), strict=True))
    assert not any(torch.equal(a, b) for a, b in zip(once, other, strict=True))
    assert all(float(g.abs().max()) > 0 for g in once)

"""The models, their data sets, and what a trainer makes of a step."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from lab import datasets, texts, trainers  # noqa: E402
from lab.catalogue import MODELS  # noqa: E402
from lab.models import MAKERS, make_optimizer  # noqa: E402

IMAGE_MODELS = [name for name, model in MODELS.items() if model.dataset == "images"]


@pytest.fixture(scope="module")
def samples():
    """A batch of two of each data set, without its files."""
    random = np.random.default_rng(1)
    rows = {"characters": len(texts.CHARACTERS), "words": datasets.WORDS}
    classes = {"characters": len(texts.CHARACTERS), "words": datasets.PREDICTED_WORDS}
    batches = {"images": (torch.randn(2, 1, 28, 28), torch.tensor([3, 7]))}
    for kind, codes in rows.items():
        row = random.integers(0, codes, 500)
        batches[kind] = datasets.Codes(row, row, datasets.CONTEXT[kind], classes[kind], 3).batch(np.array([0, 4]))
    return batches


def test_the_catalogue_lists_every_model():
    assert list(MODELS) == list(MAKERS)
    assert {model.dataset for model in MODELS.values()} == set(datasets.KINDS)


@pytest.mark.parametrize("name", MODELS)
def test_a_step_reaches_every_parameter_and_is_counted_as_one_update(name, samples):
    torch.manual_seed(1)
    model = MAKERS[name]()
    optimizer = make_optimizer(MODELS[name].optimizer, model, 0.001)
    counted = trainers.Updates(model)
    inputs, targets = samples[MODELS[name].dataset]
    before = datasets.loss(model(inputs), targets)
    for _ in range(2):
        optimizer.zero_grad()
        loss = datasets.loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
    assert all(parameter.grad is not None for parameter in model.parameters())
    assert counted.take() == 2
    assert counted.take() == 0
    assert datasets.loss(model(inputs), targets) < before


def test_nearly_all_bytes_of_words_are_in_its_first_layer():
    model = MAKERS["words"]()
    total = sum(p.numel() for p in model.parameters()) * 4
    embedding = model.embedding.weight.numel() * 4
    assert 8e6 <= embedding <= 16e6
    assert embedding > 0.8 * total


def test_no_model_keeps_statistics_that_would_differ_between_workers():
    for make in MAKERS.values():
        assert list(make().buffers()) == []


def test_targets_are_what_follows_and_rare_words_are_one_class():
    row = np.arange(10)
    inputs, targets = datasets.Codes(row, row, 4, 7, 3).batch(np.array([1]))
    assert inputs.tolist() == [[4, 5, 6, 7]]
    assert targets.tolist() == [[5, 6, 0, 0]]


@pytest.mark.parametrize("world", [1, 3])
def test_together_the_ranks_see_each_held_out_sample_once(world):
    row = np.arange(1000)
    codes = datasets.Codes(row, row, 8, 1000, 100)
    seen = [int(first) for rank in range(world) for inputs, _ in codes.held_out(rank, world) for first in inputs[:, 0]]
    assert sorted(seen) == [8 * i for i in range(100)]


def test_real_language_data_has_codes_and_targets_in_range(fortunes):
    for kind, codes, classes in (
        ("characters", len(texts.CHARACTERS), len(texts.CHARACTERS)),
        ("words", datasets.WORDS, datasets.PREDICTED_WORDS),
    ):
        opened = datasets.open_dataset(kind, None)
        assert opened.samples > 5000
        inputs, targets = opened.batch(np.arange(opened.samples - 50, opened.samples))
        assert inputs.max() < codes
        assert targets.max() < classes
        assert (targets[:, :-1] == inputs[:, 1:])[inputs[:, 1:] < classes].all()

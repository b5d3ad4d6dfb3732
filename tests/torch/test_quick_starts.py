"""The quick starts of the documents train, word for word."""

import os

import deft.torch as hvd
import pytest
import torch
from document_code import ROOT, run_code

SCRIPT = """
import sys
sys.path[:0] = {folders!r}
from test_quick_starts import train_with_ddp
train_with_ddp()
"""


class Net(torch.nn.Sequential):
    def __init__(self):
        super().__init__(torch.nn.Linear(6, 12), torch.nn.Tanh(), torch.nn.Linear(12, 1))


def what_a_reader_brings(rank):
    chance = torch.Generator().manual_seed(rank)
    loader = [(torch.randn(8, 6, generator=chance), torch.randn(8, 1, generator=chance)) for _ in range(3)]
    return {"Net": Net, "loader": loader, "loss_function": torch.nn.functional.mse_loss, "torch": torch}


def weights_of(model):
    return [weight.detach().clone() for weight in model.parameters()]


def assert_equal_and_trained(results, began=None):
    first, second = results
    assert all(torch.equal(one, other) for one, other in zip(first, second, strict=True)), "the ranks differ"
    assert began is None or not any(torch.equal(one, then) for one, then in zip(first, began, strict=True))


def train_with_ddp():
    names = run_code("docs/pytorch.md", "With DDP", what_a_reader_brings(int(os.environ["RANK"])))
    print("weights", *[weight.double().sum().item().hex() for weight in names["model"].parameters()])


def test_a_script_with_ddp_trains_after_changing_its_backend(start, tmp_path):
    script = tmp_path / "train.py"
    script.write_text(SCRIPT.format(folders=[str(ROOT / "tests/torch")]))
    results = start(1).run_as_torchrun(script)
    assert [status for status, _ in results] == [0, 0], results
    said = [line for _, output in results for line in output.splitlines() if line.startswith("weights ")]
    assert len(said) == 2 and said[0] == said[1], results


def train_with_horovods_names():
    return weights_of(run_code("docs/pytorch.md", "With Horovod's names", what_a_reader_brings(hvd.rank()))["model"])


def test_a_script_with_horovods_names_trains(start):
    torch.manual_seed(1)  # as the script does
    assert_equal_and_trained(start(1).run(train_with_horovods_names), weights_of(Net()))


def follow_the_readme():
    torch.manual_seed(hvd.rank())
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    names = run_code("README.md", "Use it", {"model": model, "optimizer": optimizer})
    for x, y in what_a_reader_brings(hvd.rank())["loader"]:
        names["optimizer"].zero_grad()
        torch.nn.functional.mse_loss(model(x), y).backward()
        names["optimizer"].step()
    names["optimizer"].flush()
    return weights_of(model)


def test_the_lines_of_the_readme_make_a_script_distributed(start):
    torch.manual_seed(0)  # the weights of rank 0, which all begin with
    assert_equal_and_trained(start(1).run(follow_the_readme), weights_of(Net()))


def train_with_delayed_updates():
    model = Net()
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
    brought = {**what_a_reader_brings(hvd.rank()), "model": model, "optimizer": optimizer}
    run_code("docs/delayed-updates.md", "Delayed updates", brought)
    return weights_of(model)


@pytest.mark.parametrize("policy", ["knapsack", "knapsack 0-1@3"])
def test_the_loop_of_delayed_updates_leaves_nothing_pending(start, policy):
    assert_equal_and_trained(start(1, policy=policy).run(train_with_delayed_updates))


def average_in_a_process_set():
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    value = torch.full((2,), float(hvd.rank()))
    names = run_code(
        "docs/horovod.md", "Process sets", {"hvd": hvd, "model": model, "optimizer": optimizer, "value": value}
    )
    return names["mean"].tolist() if names["even"].included() else None


def test_a_process_set_averages_over_its_ranks(start):
    results = start(1).run(average_in_a_process_set, workers=3)
    assert results == [[1.0, 1.0], None, [1.0, 1.0]]


def train_until_all_have_joined():
    model = Net()
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())

    class Loader(list):
        """The block steps without a backward of its own, which it leaves to the reader."""

        def __iter__(self):
            for x, y in super().__iter__():
                optimizer.zero_grad()
                torch.nn.functional.mse_loss(model(x), y).backward()
                yield x, y

    batches = what_a_reader_brings(hvd.rank())["loader"][: 1 + hvd.rank()]
    run_code(
        "docs/horovod.md",
        "join",
        {"hvd": hvd, "epochs": 2, "loader": Loader(batches), "model": model, "optimizer": optimizer},
    )
    return weights_of(model)


def test_ranks_with_different_numbers_of_batches_end_alike(start):
    assert_equal_and_trained(start(1).run(train_until_all_have_joined))

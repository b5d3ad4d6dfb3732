"""Parameters whose values do not lie in the order of their dimensions: channels_last, transposed. Fused optimizers."""

import deft.torch as hvd
import pytest
import torch
from launching import WorkerFailed
from small_models import assert_close, assert_same_everywhere, parameters
from torch import nn

STEPS = 5
MADE_BY = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9, fused=True),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=0.01, fused=True),
    # It changes p.grad in place.
    "nesterov": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9, nesterov=True, foreach=True),
}


def network():
    torch.manual_seed(7)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Tanh(), nn.Flatten(), nn.Linear(4 * 6 * 6, 5))
    model.to(memory_format=torch.channels_last)
    model[3].weight = nn.Parameter(model[3].weight.detach().t().contiguous().t())
    assert not model[0].weight.is_contiguous() and not model[3].weight.is_contiguous()
    return model


def batches():
    chance = torch.Generator().manual_seed(2)
    for _ in range(STEPS):
        yield torch.randn(8, 3, 8, 8, generator=chance).to(memory_format=torch.channels_last)


def step(model, optimizer, inputs):
    optimizer.zero_grad()
    (model(inputs) - 1).square().mean().backward()
    gradients = [parameter.grad for parameter in model.parameters()]
    optimizer.step()
    return gradients


def train(name):
    """Whether each gradient has its parameter's layout; compares with one process on the whole batch."""
    alone = network()
    its_optimizer = MADE_BY[name](alone.parameters())
    for inputs in batches():
        step(alone, its_optimizer, inputs)
    model = network()
    optimizer = hvd.DistributedOptimizer(MADE_BY[name](model.parameters()), model.named_parameters())
    for inputs in batches():
        for parameter, gradient in zip(model.parameters(), step(model, optimizer, inputs.chunk(2)[hvd.rank()])):
            assert gradient is None or gradient.stride() == parameter.stride()
    optimizer.flush()
    assert_same_everywhere(parameters(model))
    assert_close(parameters(model), parameters(alone))
    return True


@pytest.mark.parametrize("policy", ["fifo", "bytescheduler", "knapsack 0@1"])
def test_fused_optimizers_move_what_the_gradient_is_of(start, policy):
    cluster = start(2, policy=policy)
    for name in ("sgd", "adamw"):
        assert cluster.run(train, name) == [True] * 2


def evaluate_after_each_step():
    """The evaluation asks for the updates, in inference mode; the optimizer then changes p.grad in place."""
    model = network()
    optimizer = hvd.DistributedOptimizer(
        MADE_BY["nesterov"](model.parameters()), model.named_parameters(), compression=hvd.Compression.fp16
    )
    for inputs in batches():
        step(model, optimizer, inputs)
        with torch.inference_mode():
            model(inputs)
    assert not any(parameter.is_inference() for parameter in model.parameters())
    return True


def test_an_evaluation_in_inference_mode_after_each_step(start):
    assert start(2, policy="bytescheduler").run(evaluate_after_each_step) == [True] * 2


def wrap_with_wider_gradients():
    model = nn.Linear(3, 2, dtype=torch.bfloat16)
    model.weight.grad_dtype = torch.float32
    hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())


def test_gradients_of_another_dtype_than_the_parameter_are_refused_by_name(start):
    with pytest.raises(WorkerFailed) as failed:
        start(1).run(wrap_with_wider_gradients, workers=1)
    assert "parameter weight is torch.bfloat16 and has grad_dtype torch.float32" in failed.value.errors[0]

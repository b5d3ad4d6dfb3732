"""average_gradients(): what p.grad holds after each backward, whether the loop clears it or not."""

import itertools

import deft.torch as hvd
import torch
from torch.nn.functional import embedding

SIZE = 2


class Parts(torch.nn.Module):
    """Parts of which a backward reaches some."""

    def __init__(self):
        super().__init__()
        self.dense = torch.nn.ParameterList(torch.zeros(3) for _ in range(3))
        self.table = torch.nn.Parameter(torch.zeros(4, 2))


def loss_of(model, factors):
    """Its gradients are the factors: of the three dense parts, and of one row of the table. None: not reached."""
    reached = [(part * factor).sum() for part, factor in zip(model.dense, factors) if factor is not None]
    if factors[3] is not None:
        reached.append((embedding(torch.tensor([1]), model.table, sparse=True) * factors[3]).sum())
    return sum(reached)


BACKWARDS = [(1.0, 2.0, None, 3.0), (None, 5.0, 7.0, None), (11.0, None, 13.0, 17.0), (1.0, 1.0, 1.0, 1.0)]


def factors_of(rank, backward):
    return [None if factor is None else factor * (1 + rank) for factor in backward]


def found(model):
    grads = [*(part.grad for part in model.dense), model.table.grad]
    return [0.0 if grad is None else grad.to_dense().abs().max().item() for grad in grads]


def run(op, clear, passes=1, **options):
    """p.grad after each of the backwards, and what it should be."""
    model = hvd.average_gradients(Parts(), op=op, backward_passes_per_step=passes, **options)
    results, total = [], [0.0] * 4
    for backward in BACKWARDS:
        clear(model)
        if clear is not leave:
            total = [0.0] * 4
        for _ in range(passes):
            loss_of(model, factors_of(hvd.rank(), backward)).backward()
        share = passes * sum(1 + rank for rank in range(SIZE)) / (SIZE if op is hvd.Average else 1)
        total = [before + (factor or 0.0) * share for before, factor in zip(total, backward)]
        results.append((found(model), total))
    return results


def leave(_model):
    """The next backward adds to what p.grad holds."""


def clear_to_none(model):
    model.zero_grad()


def clear_to_zero(model):
    model.zero_grad(set_to_none=False)


WAYS = [(1, {}), (2, {}), (1, {"sparse_as_dense": True}), (1, {"compression": hvd.Compression.fp16})]


def all_ways():
    for op, clear, (passes, options) in itertools.product(
        (hvd.Average, hvd.Sum), (leave, clear_to_none, clear_to_zero), WAYS
    ):
        for step, (grads, expected) in enumerate(run(op, clear, passes, **options)):
            assert grads == expected, (op, clear.__name__, passes, options, step)
    return True


def test_backwards_add_up_unless_the_loop_clears(start):
    assert all(start(2).run(all_ways))

"""Small models, data and loops that several tests share. The reference is one process on the whole batch."""

import hashlib

import deft.torch as hvd
import torch
from torch import nn
from torch.nn import functional

BATCH = 8  # of all ranks together
FEATURES, CLASSES = 20, 7
DOUBLE = {"rtol": 1e-9, "atol": 1e-11}  # of float64, for assert_close


class Mixed(nn.Module):
    """Odd sizes (1 element, primes), a tied weight, attention, normalisation, and one layer larger than a part."""

    def __init__(self, dtype=torch.float32):
        super().__init__()
        self.first = nn.Linear(FEATURES, 31)
        self.gain = nn.Parameter(torch.ones(1))
        self.attention = nn.MultiheadAttention(31, 1, batch_first=True)
        self.norm = nn.LayerNorm(31)
        self.wide = nn.Linear(31, 1009)
        self.narrow = nn.Linear(1009, 31)
        self.tied = nn.Linear(FEATURES, 31, bias=False)
        self.tied.weight = self.first.weight
        self.last = nn.Linear(31, CLASSES)
        self.to(dtype)

    def forward(self, x):
        h = torch.tanh(self.first(x)) + self.tied(x)
        h = h.unsqueeze(1)
        h = (h + self.attention(h, h, h)[0] * self.gain).squeeze(1)
        h = self.norm(h)
        h = self.narrow(torch.tanh(self.wide(h))) + functional.linear(x, self.first.weight)
        return self.last(h)


OPTIMIZERS = {
    "sgd": lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9, nesterov=True, weight_decay=1e-3),
    "adamw": lambda params: torch.optim.AdamW(params, lr=1e-2),
    "rmsprop": lambda params: torch.optim.RMSprop(params, lr=1e-3, momentum=0.5),
}


def batches(steps, dtype=torch.float32, seed=5):
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        x = torch.randn(BATCH, FEATURES, generator=generator, dtype=torch.float64).to(dtype)
        yield x, torch.randint(CLASSES, (BATCH,), generator=generator)


def own_share(*tensors):
    """This rank's rows of a batch of all ranks."""
    return [tensor.chunk(hvd.size())[hvd.rank()] for tensor in tensors]


def loss_of(model, x, y):
    return functional.cross_entropy(model(x).float(), y)


def make(build=Mixed, seed=11, **arguments):
    torch.manual_seed(seed)
    return build(**arguments)


def train_alone(optimizer_name, steps, dtype=torch.float32, schedule=True, after_backward=None, build=Mixed):
    """The plain loop in one process on the whole batch."""
    model = make(build, dtype=dtype)
    optimizer = OPTIMIZERS[optimizer_name](model.parameters())
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5) if schedule else None
    for x, y in batches(steps, dtype):
        optimizer.zero_grad()
        loss_of(model, x, y).backward()
        if after_backward is not None:
            after_backward(model, optimizer)
        optimizer.step()
        if scheduler is not None:
            scheduler.step()
    return parameters(model)


def parameters(model):
    """Copies of all parameters by name; call optimizer.flush() before, if updates may wait."""
    return {name: param.detach().clone() for name, param in model.state_dict().items()}


def digest(state):
    """One hash of all bits of a model's parameters."""
    sum_of_all = hashlib.sha256()
    for name in sorted(state):
        sum_of_all.update(name.encode())
        sum_of_all.update(state[name].contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return sum_of_all.hexdigest()


def assert_same_everywhere(state):
    digests = hvd.allgather_object(digest(state))
    assert len(set(digests)) == 1, f"parameters differ between ranks: {digests}"


def assert_close(state, expected, rtol=1e-4, atol=1e-5):
    for name, value in expected.items():
        try:
            torch.testing.assert_close(state[name].double(), value.double(), rtol=rtol, atol=atol)
        except AssertionError as difference:
            raise AssertionError(f"{name}: {difference}") from None


def wrapped(model, optimizer_name="sgd", **options):
    optimizer = OPTIMIZERS[optimizer_name](p for p in model.parameters() if p.requires_grad)
    return hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters(), **options)


def overlaps(optimizer):
    return optimizer._deft.applier.overlap.deferred is not None


def check(model, optimizer, expected):
    optimizer.flush()
    state = parameters(model)
    assert_same_everywhere(state)
    assert_close(state, expected)
    return True

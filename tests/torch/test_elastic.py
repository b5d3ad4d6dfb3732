"""hvd.elastic: states, the sampler, and trainings that go on in a new job when a daemon was started again."""

import contextlib

import deft.torch as hvd
import pytest
import torch
from launching import Cluster
from restarting import STEPS, check_that_errors_end_it, run_with_restart, train_through_restart
from small_models import assert_close, assert_same_everywhere, batches, loss_of, make, own_share, parameters


def states():
    """sync() gives what rank 0 has, and restore() what the last commit had."""
    rank, model = hvd.rank(), torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0 + rank, momentum=0.5)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
    state = hvd.elastic.TorchState(model, optimizer, scheduler=scheduler, seen=[rank], epoch=rank)
    state.sync()
    assert_same_everywhere(parameters(model))
    assert (optimizer.param_groups[0]["lr"], state.seen, state.epoch) == (1.0, [0], 0)
    committed = parameters(model)
    for commits in (False, True):
        optimizer.zero_grad()
        model(torch.ones(2, 3)).sum().backward()
        optimizer.step()
        state.scheduler.step()
        state.seen.append(7)
        if commits:
            state.commit()
            optimizer.flush()
            committed = parameters(model)
        state.restore()
        assert_close(parameters(model), committed, 0, 0)
        assert state.seen == ([0, 7] if commits else [0])
        assert scheduler.last_epoch == commits and optimizer.param_groups[0]["lr"] == (0.5 if commits else 1.0)
    other = torch.nn.Linear(3, 1)
    state.model = other
    state.sync()
    assert_same_everywhere(parameters(other))
    assert not [name for name in ("model", "optimizer", "scheduler") if getattr(state, name) is None]
    return True


def samples_of_an_epoch():
    """A rank that begins an epoch anew gets what nobody has processed."""
    data, size = list(range(21)), hvd.size()
    sampler = hvd.elastic.ElasticSampler(data, seed=3)
    state = hvd.elastic.TorchState(sampler=sampler)
    first = list(sampler)
    every = hvd.allgather_object(first)
    assert len(sampler) == len(first) == 11 and set().union(*every) == set(data)
    assert sampler.get_indices(1, 4) == first[4:8]
    for place in range(2):
        sampler.record_batch(place, 4)
    state.sync()
    rest = hvd.allgather_object(list(sampler))
    processed = [index for one in every for index in one[:8]]
    assert set().union(*rest) == set(data).difference(processed) and len(sampler) == 3
    sampler.record_batch(0, 2)
    state.restore()
    assert hvd.allgather_object(list(sampler)) == rest
    sampler.set_epoch(1)
    again = hvd.allgather_object(list(sampler))
    assert again != every and set().union(*again) == set(data)
    plain = hvd.elastic.ElasticSampler(data, shuffle=False)
    assert list(plain) == [*data, 0][hvd.rank() :: size]
    plain.record_indices(data)
    plain.reset()
    assert list(plain) == []
    return True


def own_error():
    """An error of the script, or a call that ranks make differently."""
    check_that_errors_end_it(
        hvd.elastic.run,
        hvd.elastic.TorchState(batch=0),
        (KeyError, "of the script", lambda: {}["of the script"]),
        (hvd.HorovodInternalError, "on rank 1", lambda: hvd.allreduce(torch.ones(2 + hvd.rank()), name="differs")),
    )
    return True


def all_of_one_job():
    return states() and samples_of_an_epoch() and own_error()


def test_states_samples_and_errors(start):
    assert all(start(2, policy="bytescheduler").run(all_of_one_job))


def step_of(model, optimizer, x, y):
    optimizer.zero_grad()
    loss_of(model, x, y).backward()
    optimizer.step()


def train(pid, options):
    """Momentum is lost, and gradients are averaged twice or not at all, unless the optimizer goes on as it was."""
    model = make()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters(), **options)
    state, steps = hvd.elastic.TorchState(model, optimizer, step=0), list(batches(STEPS))

    def make_step(number):
        step_of(model, optimizer, *own_share(*steps[number]))

    train_through_restart(hvd.elastic.run, state, pid, make_step)
    optimizer.flush()
    assert_same_everywhere(parameters(model))
    return parameters(model)


def averaged(pid, options):
    """The weights are those of one process on the whole batches."""
    weights, reference = train(pid, options), make()
    plain = torch.optim.SGD(reference.parameters(), lr=0.05, momentum=0.9)
    for x, y in batches(STEPS):
        step_of(reference, plain, x, y)
    assert_close(weights, parameters(reference))
    return True


def with_plain_options(pid):
    return averaged(pid, {})


def with_division_before_the_sum(pid):
    return averaged(pid, {"gradient_predivide_factor": 2.0})


def with_delayed_updates(pid):
    return bool(train(pid, {}))


@pytest.mark.parametrize(
    ("policy", "function"),
    [
        ("fifo", with_plain_options),
        ("bytescheduler", with_division_before_the_sum),
        ("knapsack 0-2@4", with_delayed_updates),
    ],
)
def test_a_training_goes_on_when_a_daemon_was_started_again(tmp_path, worker_server, policy, function):
    with contextlib.closing(Cluster(tmp_path, 2, policy=policy, timeout="20s")) as cluster:
        assert all(run_with_restart(cluster, function))

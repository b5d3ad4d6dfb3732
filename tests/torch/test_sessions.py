"""What belongs to a session that has ended says so in the next one."""

import deft.torch as hvd
import pytest
from small_models import assert_same_everywhere, batches, check, loss_of, make, own_share, wrapped


def train(model, optimizer):
    for x, y in batches(3):
        optimizer.zero_grad()
        loss_of(model, *own_share(x, y)).backward()
        optimizer.step()


def outlive_a_session():
    model, unused = make(), make()
    optimizer, never_stepped = wrapped(model), wrapped(unused)
    train(model, optimizer)
    hvd.shutdown()
    hvd.init()
    for one, other in ((optimizer, model), (never_stepped, unused)):
        with pytest.raises(RuntimeError, match="DistributedOptimizer has ended"):
            train(other, one)
        with pytest.raises(RuntimeError, match="has ended: wrap a new one"):
            one.synchronize()
    optimizer = wrapped(model)
    train(model, optimizer)
    return check(model, optimizer, {})


@pytest.mark.parametrize("policy", ["fifo", "bytescheduler", "knapsack 0@1"])
def test_an_optimizer_of_an_ended_session_is_out_of_use(start, policy):
    assert all(start(2, policy=policy).run(outlive_a_session))


def average_in_the_next_session():
    model = make()
    hvd.average_gradients(model)
    loss_of(model, *own_share(*next(batches(1)))).backward()
    hvd.shutdown()
    model.zero_grad()
    loss_of(model, *next(batches(1))).backward()  # alone, as the script wants it
    hvd.init()
    with pytest.raises(RuntimeError, match=r"average_gradients.* call it again after init"):
        loss_of(model, *own_share(*next(batches(1)))).backward()
    for again in (hvd.average_gradients, wrapped):
        kept = again(model)
        model.zero_grad()
        loss_of(model, *own_share(*next(batches(1)))).backward()
        assert kept is model or kept.param_groups, "a look at them waits for averages"
        assert_same_everywhere({name: param.grad for name, param in model.named_parameters()})
    return True


def test_averaging_of_an_ended_session_is_an_error_in_the_next(start):
    assert all(start(2, policy="fifo").run(average_in_the_next_session))

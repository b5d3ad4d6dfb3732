"""A training of MXNet that is traced: replayed and explained."""

import pytest
from mxnet_jobs import WAYS, backward, make_step, small_net
from traced_training import check_traces
from training_checks import batches, own_share

STEPS = 12


def train(way):
    net = small_net()
    step = make_step(way, net)
    for x, y in batches(STEPS):
        x, y = own_share(x, y)
        backward(net, x, y)
        step(len(x))


@pytest.mark.parametrize("way", WAYS)
def test_a_traced_training_is_explained(start, tmp_path, way):
    start(policy="bytescheduler").run(train, way, trace=tmp_path)
    check_traces(tmp_path, STEPS - 2)

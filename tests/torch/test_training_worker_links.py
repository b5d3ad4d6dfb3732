"""Training over links that the workers run, alone and mixed with gloo: as one process, the same bits on every rank."""

import pytest
from test_training import train_dtypes, train_everything


@pytest.mark.parametrize("links", ["tcp:lo", "gloo:lo,tcp:lo"])
@pytest.mark.parametrize(("policy", "workers", "nodes"), [("fifo", 4, 2), ("bytescheduler", 4, 2), ("p3", 2, 2)])
def test_trains_as_one_process_on_the_whole_batch(start, workers, nodes, policy, links):
    cluster = start(nodes, policy=policy, links=links, partition_bytes="4KB")
    assert all(cluster.run(train_everything, workers=workers))


def test_workers_of_one_node_train_over_their_own_link(start):
    assert all(start(1, policy="bytescheduler", links="tcp:lo").run(train_everything, workers=2))


def test_dtypes_compression_and_predivision(start):
    cluster = start(2, policy="bytescheduler", links="gloo:lo,tcp:lo", partition_bytes="4KB")
    assert all(cluster.run(train_dtypes))

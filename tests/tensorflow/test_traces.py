"""A training of TensorFlow that is traced: replayed and explained."""

import pytest
from test_training import STEPS, train
from traced_training import check_traces


@pytest.mark.parametrize("how, compiled", [("tape", True), ("optimizer", False)])
def test_a_traced_training_is_explained(start, tmp_path, how, compiled):
    start(policy="bytescheduler").run(train, how, compiled, trace=tmp_path)
    check_traces(tmp_path, STEPS - 2)

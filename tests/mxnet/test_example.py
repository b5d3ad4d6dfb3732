"""The example trains in both of its ways."""

import re

import pytest
from launching import ROOT

EXAMPLE = ROOT / "examples/mxnet/fashion_mnist.py"


@pytest.mark.parametrize("ways", [[], ["--kvstore"]])
def test_the_example_trains(start, ways):
    for status, output in start().run_script(EXAMPLE, "--steps", "3", *ways):
        assert status == 0, output
        if "test accuracy" in output:
            assert re.search(r"loss \d+\.\d+", output) and re.search(r"test accuracy \d+\.\d\d %", output)
            return
    raise AssertionError(f"rank 0 said nothing: {output}")

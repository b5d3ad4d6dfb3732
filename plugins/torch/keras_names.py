"""Names of parameters of Keras on PyTorch.

A torch module names a parameter by its path of attributes. Keras names it by the path of its variable, which counts the
layers that this process has made: "_torch_params.sequential_1/dense_5/kernel". Other ranks may have made other layers.
"""

import re

from deft.names import common_name

_MARK = "_torch_params."
_COUNTER = re.compile(r"_(\d+)(?=/|$)")


def with_common_names(pairs):
    """(name, tensor) pairs. If some are of Keras, names and order become the same on all ranks.

    torch sorts Keras's parameters by their names, by which the layer 10 comes before the layer 9."""
    pairs = list(pairs)
    if not any(_MARK in str(name) for name, _ in pairs):
        return pairs
    pairs.sort(key=lambda pair: _COUNTER.sub(lambda counter: f"_{int(counter[1]):09}", str(pair[0])))
    return [(common_name(place, str(name)), one) for place, (name, one) in enumerate(pairs)]

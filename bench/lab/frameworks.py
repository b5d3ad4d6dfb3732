"""The frameworks that bench/compare knows besides PyTorch: their models, and how their own distribution is started."""

from __future__ import annotations

import json
from dataclasses import dataclass

# Layers of lab/models.py, for frameworks that build them themselves: every layer but the last has a ReLU.
LAYERS = {
    "cnn": [*[("conv", 64)] * 2, ("pool",), *[("conv", 64)] * 2, ("pool",), *[("dense", 1024)] * 2, ("dense", 10)],
    "vgg": [*[("conv", 32)] * 2, ("pool",), *[("conv", 64)] * 2, ("pool",), *[("conv", 128)] * 2, ("pool",),
            *[("dense", 1024)] * 2, ("dense", 10)],
    "mlp": [("dense", 64), ("dense", 10)],
}  # fmt: skip
FRAMEWORKS = ("tensorflow", "mxnet")
# Of all workers. MXNet's are as deft.mxnet sets them: a gradient is sent once it is there, and not with others.
VARIABLES = {
    "tensorflow": {"TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": ""},
    "mxnet": {f"MXNET_EXEC_BULK_EXEC_MAX_NODE_TRAIN_{way}": "1" for way in ("FWD", "BWD")},
}


@dataclass(frozen=True)
class Place:
    """Where the processes of a framework's own distribution meet."""

    addresses: list[str]  # of the nodes
    port: int  # of this scheme's first process; the next hundred are free, too
    workers: int  # a node

    def environment(self, framework: str, rank: int) -> dict[str, str]:
        """Of a worker."""
        if framework == "mxnet":
            return self._parameter_server("worker", rank // self.workers)
        workers = [f"{address}:{self.port + local}" for address in self.addresses for local in range(self.workers)]
        return {"TF_CONFIG": json.dumps({"cluster": {"worker": workers}, "task": {"type": "worker", "index": rank}})}

    def helpers(self, framework: str) -> list[tuple[int, dict[str, str]]]:
        """The processes besides the workers: (node, environment)."""
        if framework != "mxnet":
            return []
        servers = [(node, self._parameter_server("server", node)) for node in range(len(self.addresses))]
        return [(0, self._parameter_server("scheduler", 0)), *servers]

    def _parameter_server(self, role: str, node: int) -> dict[str, str]:
        return {
            "DMLC_ROLE": role,
            "DMLC_PS_ROOT_URI": self.addresses[0],
            "DMLC_PS_ROOT_PORT": str(self.port),
            "DMLC_NODE_HOST": self.addresses[node],
            "DMLC_NUM_WORKER": str(len(self.addresses) * self.workers),
            "DMLC_NUM_SERVER": str(len(self.addresses)),
        }

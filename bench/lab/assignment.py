"""The training, and the assignment of each process of a scheme: its options, its addresses and its log."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from lab import servers
from lab.frameworks import Place
from lab.layers import Layers
from lab.netns import Nodes
from lab.schemes import WRAPPERS, Scheme

_FIRST_PORT = 29610  # jobs live side by side, each with a port of its own
_FIRST_STORE_PORT = 30610  # of torch.distributed
_FIRST_SERVER_PORT = 28610  # of parameter servers
_FIRST_OWN_PORT, _OWN_PORTS = 31000, 100  # of frameworks' own distribution


@dataclass(frozen=True)
class Training:
    """The training, the same for all schemes."""

    model: str
    data: str | None
    batch: int
    workers: int  # a node
    learning_rate: float
    seed: int
    build: Path
    links: tuple[str, ...] = ()  # Deft's, as gloo:eth0; none: gloo on every NIC
    schedule: str = "constant"  # a key of schedule.py's
    steps: int = 0  # of the whole run, as far as the schedule goes
    layers: Layers | None = None  # to be replayed (lab/replay.py) instead of computed
    framework: str = "torch"

    def links_on(self, interfaces: list[str]) -> list[str]:
        """Deft's links on these NICs."""
        if not self.links:
            return [f"gloo:{name}" for name in interfaces]
        return [link for link in self.links if link.partition(":")[2] in interfaces]


class Assignment:
    """Of one scheme on all nodes. `role`: what the workers do if they do not train as the scheme says."""

    def __init__(self, lab: Nodes, scheme: Scheme, training: Training, number: int, logs: Path, role: str | None):
        self._lab, self._scheme, self._training = lab, scheme, training
        self._number, self._logs = number, logs
        self._role = role or scheme.role
        self.scheme = scheme.text
        self.world = lab.nodes * training.workers

    def log(self, name: str) -> Path:
        return self._logs / f"{self._number}-{self._scheme.text.replace('/', '_')}-{name}.log"

    def setting(self, rank: int) -> dict:
        training = self._training
        setting = {
            "kind": self._role,
            "model": training.model,
            "data": training.data,
            "batch": training.batch,
            "rank": rank,
        }
        setting |= {"world": self.world, "learning_rate": training.learning_rate, "seed": training.seed}
        setting |= {"schedule": training.schedule, "steps": training.steps, "layers": training.layers}
        setting |= {"packages": str(training.build / "python"), "passes": self._scheme.passes}
        setting |= {"bucket_mib": self._scheme.bucket_mib, "hook": self._scheme.hook, "options": self._scheme.options}
        if training.framework != "torch":
            setting |= {"framework": training.framework}
        setting |= {"workers": training.workers}
        return setting | {"store": f"{self._lab.address(0)}:{_FIRST_STORE_PORT + self._number}"}

    def worker_environment(self, rank: int) -> dict[str, str]:
        node, local = divmod(rank, self._training.workers)
        environment = {}
        if self._scheme.kind == "own":
            environment |= self.own_place().environment(self._training.framework, rank)
        if self._scheme.kind in WRAPPERS or self._scheme.wrapper:
            environment["GLOO_SOCKET_IFNAME"] = ",".join(self._lab.interfaces(self._scheme.nics))
        if self._scheme.is_deft:
            environment |= {
                "DEFT_SOCKET": self.socket(node),
                "DEFT_LEADER": self.control(0), "DEFT_RANK": str(rank), "DEFT_WORLD_SIZE": str(self.world),
                "DEFT_LOCAL_RANK": str(local), "DEFT_LOCAL_SIZE": str(self._training.workers),
                "DEFT_POLICY": self._scheme.kind, "DEFT_LINKS": self.links(),
            }  # fmt: skip
        return environment | self.option_environment()

    def own_place(self) -> Place:
        """Where a framework's own distribution meets, on the first NIC."""
        addresses = [self._lab.address(node) for node in range(self._lab.nodes)]
        return Place(addresses, _FIRST_OWN_PORT + _OWN_PORTS * self._number, self._training.workers)

    def option_environment(self) -> dict[str, str]:
        if not self._scheme.is_deft:
            return {}
        return {f"DEFT_{name.upper()}": value for name, value in self._scheme.options}

    def socket(self, node: int) -> str:
        return str(self._lab.folder(node) / f"deftd{self._number}.sock")

    def control(self, node: int) -> str:
        return f"{self._lab.address(node)}:{_FIRST_PORT + self._number}"

    def links(self) -> str:
        chosen = self._training.links_on(self._lab.interfaces(self._scheme.nics))
        given = dict(self._scheme.options).get("links")
        port = _FIRST_SERVER_PORT + self._number
        return ",".join(servers.resolved(self._lab, link, port) for link in (given.split(",") if given else chosen))

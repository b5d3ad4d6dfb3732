"""Cases of the soak tests: a training with one fault at a random instant, and the verdict on how it went.

    case = draw_case(seed=7, number=12)         # the same at any time and on any machine
    verdict = run(field, case, grace_s=1)
    verdict.outcome                             # "went on", "told" or "wrong"; verdict.wrong says what was

Wrong is what hangs, dies by itself, sums wrongly, blames nobody, or leaves something behind.
"""

import json
import random
import time
from dataclasses import asdict, dataclass, field

from soak_faults import FAULTS, Draw, Fault
from soak_field import PATIENCE_S, Field, Worker, await_ends, listen_to, listen_to_all

STEPS = 100
JOB_S = 1.0  # about what a job takes without a fault
START_S = 0.08  # of it, in which workers attach, and links open
POLICIES = ("fifo", "mgwfbp", "p3", "bytescheduler", "prophet", "usbyte", "dear", "auto")
WENT_ON, TOLD, WRONG = "went on", "told", "wrong"


@dataclass(frozen=True)
class Case:
    seed: int
    number: int
    kind: str
    links: str
    policy: str
    at_s: float
    for_timeouts: float  # how long the fault lasts, in timeouts of the daemons
    draw: Draw


@dataclass
class Verdict:
    case: Case
    wrong: list[str] = field(default_factory=list)
    told: int = 0  # survivors that had an error
    slowest_s: float = 0.0  # of these errors, since the fault began
    texts: list[str] = field(default_factory=list)

    @property
    def outcome(self) -> str:
        return WRONG if self.wrong else TOLD if self.told else WENT_ON

    def json(self) -> str:
        return json.dumps({**asdict(self), "outcome": self.outcome})


def instant(fault: type[Fault], dice: random.Random) -> float:
    """After the start of the workers."""
    starting = fault.while_starting and dice.random() < fault.while_starting
    return round(dice.uniform(0, START_S if starting else JOB_S), 3)


def draw_case(seed: int, number: int, kinds: list[str] | None = None) -> Case:
    kinds = kinds or list(FAULTS)
    kind = kinds[number % len(kinds)]
    dice = random.Random(f"{seed}/{number}/{kind}")
    fault = FAULTS[kind]
    per_node = dice.choice([1, 1, 2])
    node, other = dice.sample(range(Field.NODES), 2)
    links = dice.choice(fault.links)
    halves = all(link.startswith("gloo:") for link in links.split(","))  # which the policy dear needs
    policies = [policy for policy in POLICIES if policy != "dear" or halves]
    draw = Draw(
        per_node=per_node,
        rank=dice.randrange(per_node * Field.NODES),
        node=node,
        other=other,
        nic=dice.randrange(2),
        amount=dice.random(),
    )
    return Case(
        seed,
        number,
        kind,
        links=links,
        policy=dice.choice(policies),
        at_s=instant(fault, dice),
        for_timeouts=round(dice.uniform(*fault.timeouts), 3),
        draw=draw,
    )


def run(nodes: Field, case: Case, grace_s: float, longest_fault_s: float = 1e9) -> Verdict:
    verdict = Verdict(case)
    links = case.links.replace("ps", f"ps:{nodes.server_address}")
    workers = nodes.start(
        case.draw.per_node, STEPS, DEFT_JOB=f"case-{case.number}", DEFT_LINKS=links, DEFT_POLICY=case.policy
    )
    fault = FAULTS[case.kind](nodes, case.draw)
    began = time.monotonic()
    listen_to_all(workers, began + case.at_s)
    fault_at = time.monotonic()
    fault.begin()
    try:
        await_lifting(nodes, fault, fault_at + case.for_timeouts * nodes.timeout_s, longest_fault_s)
    finally:
        lifted_at = time.monotonic()
        fault.end()
    survivors = [worker for worker in workers if worker.rank not in fault.killed()]
    await_ends(survivors, patience_s(nodes.timeout_s, grace_s))
    judge(verdict, fault, survivors, fault_at, lifted_at, grace_s)
    verdict.wrong += nodes.end_workers()
    verdict.wrong += look_after(nodes, fault)
    return verdict


def await_lifting(nodes: Field, fault: Fault, until: float, longest_s: float) -> None:
    """Listens until the fault is to be lifted; a fault that is cut short has nobody to hurt once all have ended."""
    if until - time.monotonic() <= longest_s:
        listen_to_all(nodes.workers, until)
    else:
        listen_to([one for one in nodes.workers if one.rank not in fault.stopped()], longest_s)


def patience_s(timeout_s: float, grace_s: float) -> float:
    """How long to wait for the next word of a worker: longer than the latest error that is right may take."""
    return max(PATIENCE_S, timeout_s + 2 * grace_s)


def judge(
    verdict: Verdict, fault: Fault, survivors: list[Worker], fault_at: float, lifted_at: float, grace_s: float
) -> None:
    all_begun_at = max(worker.begun_at for worker in survivors)
    for worker in survivors:
        who = f"rank {worker.rank}"
        end = worker.end
        if end is None:
            waited_s = patience_s(fault.field.timeout_s, grace_s)
            verdict.wrong.append(f"{who} has neither a step nor an error nor its end for {waited_s:g} s")
        elif end["event"] == "error":
            verdict.told += 1
            verdict.texts.append(f"{who}: {end['text']}")
            since = max(fault_at, all_begun_at, lifted_at if worker.rank in fault.stopped() else 0)
            late_s = end["at"] - since
            verdict.slowest_s = max(verdict.slowest_s, late_s)
            if late_s > fault.field.timeout_s + grace_s:
                verdict.wrong.append(f"{who} had its error {late_s:.2f} s after the fault: {end['text']}")
            if not fault.may_tell:
                verdict.wrong.append(f"{who} had an error, but this fault must hurt nobody: {end['text']}")
            elif not fault.names_culprit(worker.rank, end["text"]):
                verdict.wrong.append(f"the error of {who} names no culprit: {end['text']}")
        elif end["event"] != "done":
            verdict.wrong.append(f"{who}: {end}")


def look_after(nodes: Field, fault: Fault) -> list[str]:
    """What is left behind, and whether the next job runs."""
    wrong = [f"{name} has ended" for name in nodes.ended_by_themselves(fault.kills())]
    nodes.restart_dead()
    wrong += [f"left behind: {words}" for words in nodes.leftovers()]
    try:
        nodes.probe()
        nodes.learn()
    except AssertionError as error:
        wrong.append(str(error))
    return wrong

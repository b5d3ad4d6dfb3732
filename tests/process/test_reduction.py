"""Sums through real daemons: every policy, layout of workers, dtype, odd size and order of readiness."""

import json

import pytest
from cluster import Cluster, wait_for_line

LAYOUTS = [(1, 2), (2, 1), (2, 2), (4, 1), (1, 4)]

POLICIES = ["fifo", "mgwfbp", "mergecomp", "p3", "bytescheduler", "prophet", "usbyte", "dear", "knapsack", "auto"]

SUMS = """
import functools, hashlib, random
DTYPES = [deft.FLOAT32, deft.FLOAT64, deft.FLOAT16, deft.BFLOAT16]
SIZES = [1, 7, 1009, 16384, 40009]  # one element, primes, a whole part, several parts
tensors = [deft.Tensor(f"t{d}.{n}", d, (n,), i * len(SIZES) + j)
           for i, d in enumerate(DTYPES) for j, n in enumerate(SIZES)]

def store(group, index, values):  # float32 values into the tensor's own type; bfloat16 by its upper half
    dtype = tensors[index].dtype
    if dtype == deft.BFLOAT16:
        vector(group, index, np.uint16)[:] = (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    else:
        vector(group, index, numpy_type(dtype))[:] = values

def load(group, index):
    dtype = tensors[index].dtype
    if dtype == deft.BFLOAT16:
        return (vector(group, index, np.uint16).astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    return vector(group, index, numpy_type(dtype)).astype(np.float64)

def numpy_type(dtype):
    return {deft.FLOAT32: np.float32, deft.FLOAT64: np.float64, deft.FLOAT16: np.float16}[dtype]

# Small whole numbers are exact in every type, so the sum must be exact too, in whatever order it is made.
@functools.cache
def whole_numbers(step, r):
    return [np.random.default_rng((step, r, i)).integers(-8, 9, t.shape[0]).astype(np.float32)
            for i, t in enumerate(tensors)]

@functools.cache
def fractions(r):
    return [np.random.default_rng((r, i)).standard_normal(t.shape[0]) for i, t in enumerate(tensors)]

def sums(session, rank, size):
    group = session.declare("mixed", tensors)
    digest = hashlib.sha256()
    for step in range(4):
        parts = {r: whole_numbers(step, r) for r in range(size)}
        order = list(range(len(tensors)))
        random.Random(1000 * step + rank).shuffle(order)  # another order on every rank
        for index in order:
            store(group, index, parts[rank][index])
            group.ready(index, 1, step)
        for index in range(len(tensors)):
            group.wait(index, 1, step)
            expected = sum(parts[r][index].astype(np.float64) for r in range(size))
            assert (load(group, index) == expected).all(), (tensors[index].name, step)
        # Fractions round; all ranks must then hold the very same bits.
    step += 1
    for index, t in enumerate(tensors):
        store(group, index, fractions(rank)[index].astype(np.float32))
        group.ready(index, 1, step)
    group.wait(0, len(tensors), step)
    for index, t in enumerate(tensors):
        digest.update(np.ascontiguousarray(load(group, index)).tobytes())
        exact = sum(fractions(r)[index] for r in range(size))
        tolerance = {deft.FLOAT32: 1e-5, deft.FLOAT64: 1e-5, deft.FLOAT16: 2e-2, deft.BFLOAT16: 2e-1}[t.dtype]
        assert np.abs(load(group, index) - exact).max() < tolerance, (t.name, np.abs(load(group, index) - exact).max())
    return digest.hexdigest()

for policy in POLICIES:  # a job each, one after the other
    os.environ["DEFT_POLICY"] = policy
    session = deft.open(job=policy)
    say(f"{policy} {sums(session, session.rank, session.size)}")
    session.close()
"""


@pytest.fixture(scope="module", params=LAYOUTS, ids=lambda layout: f"{layout[0]}-{layout[1]}")
def bits(request):
    """The ranks' bits by policy: one cluster and one process a rank do all policies."""
    nodes, per_node = request.param
    with Cluster(nodes, bucket_bytes="64KB", partition_bytes="16KB", credit_bytes="32KB") as cluster:
        workers = cluster.start_without_session(f"POLICIES = {POLICIES}\n{SUMS}", per_node)
        lines = [line.split() for output in cluster.finish(workers, seconds=180) for line in output.splitlines()]
    found = {policy: [bits for name, bits in lines if name == policy] for policy in POLICIES}
    assert all(len(values) == nodes * per_node for values in found.values()), lines
    return found


@pytest.mark.parametrize("policy", POLICIES)
def test_every_rank_gets_the_exact_sum(policy, bits):
    assert len(set(bits[policy])) == 1, "the ranks hold different bits"


COLLECTIVES = """
for dtype, kind in [(deft.FLOAT32, np.float32), (deft.FLOAT64, np.float64), (deft.FLOAT16, np.float16),
                    (deft.INT32, np.int32), (deft.INT64, np.int64), (deft.UINT8, np.uint8), (deft.INT8, np.int8)]:
    for n in (1, 13, 70001):
        mine = ((np.arange(n) + rank) % 7).astype(kind)
        rows = np.stack([((np.arange(n) + r) % 7).astype(kind) for r in range(size)])
        wanted = [(deft.SUM, rows.sum(0, dtype=kind)), (deft.MIN, rows.min(0)), (deft.MAX, rows.max(0))]
        handles = [(session.allreduce(f"{op}", pointer(mine), n, dtype, op), want) for op, want in wanted]
        if rank % 2:
            handles.reverse()
        for handle, want in handles:
            out = np.empty(n, kind)
            handle.finish(pointer(out))
            assert (out == want).all(), (dtype, n)
        for root in range(size):
            out = np.empty(n, kind)
            session.broadcast("b", pointer(mine), n, dtype, root).finish(pointer(out))
            assert (out == rows[root]).all()
        counts = [r * 3 + 1 for r in range(size)]
        block = np.full(counts[rank], rank, kind)
        out = np.empty(sum(counts), kind)
        session.allgather("g", pointer(block), counts, dtype).finish(pointer(out))
        assert (out == np.repeat(np.arange(size), counts).astype(kind)).all()
session.barrier("end")
session.close()
"""


@pytest.mark.parametrize("nodes, per_node", [(1, 1), (1, 3), (2, 2), (3, 1)])
def test_collectives_of_all_types(nodes, per_node):
    with Cluster(nodes) as cluster:
        cluster.finish(cluster.start(COLLECTIVES, per_node))


def test_several_jobs_at_once_are_kept_apart():
    script = """
for step in range(50):
    x = np.full(1000, float(os.environ["JOB_VALUE"]), np.float32)
    session.allreduce("x", pointer(x), 1000, deft.FLOAT32, deft.SUM).finish(pointer(x))
    assert (x == 2 * float(os.environ["JOB_VALUE"])).all()
session.close()
"""
    with Cluster(2) as cluster:
        jobs = [cluster.start(script, DEFT_JOB=f"job{i}", JOB_VALUE=str(i + 1)) for i in range(3)]
        for workers in jobs:
            cluster.finish(workers)


def test_a_job_starts_from_the_links_costs_that_a_probe_has_written(tmp_path):
    file = tmp_path / "probe.json"
    known = {"name": "gloo:lo", "latency_us": 12345.5, "bytes_per_us": 7.25}
    file.write_text(json.dumps({"nodes": [], "measured": [], "profile_links": [known]}))
    with Cluster(2, link_costs=str(file)) as cluster:
        workers = cluster.start("say('here')\ntime.sleep(60)\n")
        for worker in workers:
            wait_for_line(worker, "here")
        assert cluster.status(0)["jobs"][0]["leader"]["links"] == [known | {"lost": ""}]

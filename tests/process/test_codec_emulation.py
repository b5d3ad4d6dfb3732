"""bench/codecs adds as the daemons do: the same training gives the same parameters, bit for bit."""

import sys

import pytest
from cluster import BUILD, ROOT, Cluster
from under_test import PRELOAD

torch = pytest.importorskip("torch")
sys.path[:0] = [str(ROOT / "bench"), str(ROOT / "tests/frameworks")]
from lab.codec_sums import CodecSums  # noqa: E402
from numpy_codec_sums import stable_hash  # noqa: E402

STEPS = 6

# Each rank pulls the same weights by its own gradients. The matrix alone is encoded, and travels as one part. So it has
# the same owners in the daemon and in the emulation. Most of its last block is padding, which no step may fill.
TRAINING = """
import hashlib
import numpy as np

SHAPES = [(300, 251), (5000,), (20, 20)]

def beginning():
    return [np.random.default_rng(index).standard_normal(int(np.prod(s))).astype(np.float32)
            for index, s in enumerate(SHAPES)]

def gradient(step, index, rank, weights):
    noise = np.random.default_rng((step, index, rank)).standard_normal(weights.size).astype(np.float32)
    return weights * np.float32(0.1) + noise

def update(weights, total):
    weights -= np.float32(0.05) * total

def digest(weights):
    return hashlib.sha256(b"".join(w.tobytes() for w in weights)).hexdigest()
"""

WORKER = (
    TRAINING
    + """
DTYPES = {"float32": deft.FLOAT32, "float16": deft.FLOAT16, "bfloat16": deft.BFLOAT16}

def put(values, place, dtype):
    if dtype == "bfloat16":
        bits = values.view(np.uint32)
        place[:] = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    else:
        place[:] = values

def taken(place, dtype):
    return (place.astype(np.uint32) << 16).view(np.float32) if dtype == "bfloat16" else place.astype(np.float32)

for codec, dtype in JOBS:
    os.environ["DEFT_COMPRESSION"] = codec
    session = deft.open(job=codec.replace("/", "-") + dtype)
    tensors = [deft.Tensor(f"t{i}", DTYPES[dtype], shape, i) for i, shape in enumerate(SHAPES)]
    group, weights = session.declare("model", tensors), beginning()
    places = [vector(group, i, np.uint16 if dtype == "bfloat16" else dtype) for i in range(len(SHAPES))]
    for step in range(STEPS):
        for index, own in enumerate(weights):
            put(gradient(step, index, session.rank, own), places[index], dtype)
            group.ready(index, 1, step)
        group.wait(0, len(SHAPES), step)
        for own, place in zip(weights, places):
            update(own, taken(place, dtype))
    say(f"{codec} {dtype} {digest(weights)}")
    session.close()
"""
)


def first_place(shapes: list, dtype: torch.dtype) -> int:
    """Of the first element. Those of halves stand behind the places that float32 would have."""
    if dtype == torch.float32:
        return 0
    slot = 0
    for shape in shapes:
        align = 1024 if 2 * shape.numel() >= 16384 else 64
        slot = -(-slot // align) * align + -(-2 * shape.numel() // align) * align
    return -(-slot // 4096) * 4096 // 4


def emulate(codec: str, kind: str) -> str:
    names: dict = {}
    exec(TRAINING, names)
    shapes = [torch.Size(shape) for shape in names["SHAPES"]]
    dtype = getattr(torch, kind)
    job = stable_hash(f"{codec.replace('/', '-')}{kind}/model")
    sums = CodecSums(codec, shapes, nodes=2, job=job, dtype=dtype, first=first_place(shapes, dtype))
    weights = names["beginning"]()
    for step in range(STEPS):
        gradients = [
            [torch.from_numpy(names["gradient"](step, index, rank, own)).to(dtype) for index, own in enumerate(weights)]
            for rank in range(2)
        ]
        for own, total in zip(weights, sums.add(gradients, step), strict=True):
            names["update"](own, total.reshape(-1).float().numpy())
    return names["digest"](weights)


@pytest.mark.skipif(PRELOAD is not None, reason="this process has no sanitizer, the emulation has")
def test_training_by_daemons_and_by_the_emulation_gives_the_same_bits():
    if not (BUILD / "bench/libdeft_emulation.so").exists():
        pytest.skip("this build has no benchmarks")
    codecs = ["none", "int8", "int4", "bf16", "int2", "efsignsgd", "onebit", "topk/ratio=0.05"]
    codecs += ["lowrank/rank=2", "lowrank/rank=3,method=powersgd"]
    jobs = [(codec, "float32") for codec in codecs]
    jobs += [(codec, "bfloat16") for codec in ("none", "int8", "int4", "efsignsgd", "topk/ratio=0.05")]
    jobs += [(codec, "float16") for codec in ("none", "int8")]
    with Cluster(2, partition_bytes="4MB", bucket_bytes="4MB") as cluster:
        workers = cluster.start_without_session(f"JOBS, STEPS = {jobs}, {STEPS}\n{WORKER}")
        lines = [line.split() for output in cluster.finish(workers, seconds=120) for line in output.splitlines()]
    for job in jobs:
        found = {digest for *name, digest in lines if tuple(name) == job}
        assert found == {emulate(*job)}, job
    assert len({digest for *_, digest in lines}) == len(jobs), "codecs that differ give other parameters"

"""bench/codecs adds as the daemons do: the same training gives the same parameters, bit for bit."""

import os
import sys

import pytest
from cluster import BUILD, ROOT, Cluster

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
for codec in CODECS:  # a job each
    os.environ["DEFT_COMPRESSION"] = codec
    session = deft.open(job=codec.replace("/", "-"))
    tensors = [deft.Tensor(f"t{i}", deft.FLOAT32, shape, i) for i, shape in enumerate(SHAPES)]
    group, weights = session.declare("model", tensors), beginning()
    for step in range(STEPS):
        for index, own in enumerate(weights):
            vector(group, index)[:] = gradient(step, index, session.rank, own)
            group.ready(index, 1, step)
        group.wait(0, len(SHAPES), step)
        for index, own in enumerate(weights):
            update(own, vector(group, index))
    say(f"{codec} {digest(weights)}")
    session.close()
"""
)


def emulate(codec: str) -> str:
    names: dict = {}
    exec(TRAINING, names)
    shapes = [torch.Size(shape) for shape in names["SHAPES"]]
    sums = CodecSums(codec, shapes, nodes=2, job=stable_hash(f"{codec.replace('/', '-')}/model"))
    weights = names["beginning"]()
    for step in range(STEPS):
        gradients = [
            [torch.from_numpy(names["gradient"](step, index, rank, own)) for index, own in enumerate(weights)]
            for rank in range(2)
        ]
        for own, total in zip(weights, sums.add(gradients, step), strict=True):
            names["update"](own, total.reshape(-1).numpy())
    return names["digest"](weights)


@pytest.mark.skipif("DEFT_TEST_PRELOAD" in os.environ, reason="this process has no sanitizer, the emulation has")
def test_training_by_daemons_and_by_the_emulation_gives_the_same_bits():
    if not (BUILD / "bench/libdeft_emulation.so").exists():
        pytest.skip("this build has no benchmarks")
    codecs = ["none", "int8", "int4", "bf16", "int2", "efsignsgd", "onebit", "topk/ratio=0.05"]
    codecs += ["lowrank/rank=2", "lowrank/rank=3,method=powersgd"]
    with Cluster(2, partition_bytes="4MB", bucket_bytes="4MB") as cluster:
        workers = cluster.start_without_session(f"CODECS, STEPS = {codecs}, {STEPS}\n{WORKER}")
        lines = [line.split() for output in cluster.finish(workers, seconds=120) for line in output.splitlines()]
    for codec in codecs:
        found = {digest for name, digest in lines if name == codec}
        assert found == {emulate(codec)}, codec
    assert len({digest for _, digest in lines}) == len(codecs), "codecs that differ give other parameters"

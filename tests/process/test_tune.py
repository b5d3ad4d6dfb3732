"""`deft tune` on real jobs: every setting that it tries is in force on all nodes, and no sum changes."""

import os
import subprocess
import sys
from pathlib import Path

from cluster import BUILD, IMPORTS, Cluster, json_of, wait_for_line, wait_until

# Rank 0 ends the training at the same step on all ranks, because the last sum says so.
TRAIN = """
SIZES = [200_001, 3000, 50_000]
tensors = [deft.Tensor(f"t{n}", deft.FLOAT32, (n,), len(SIZES) - i) for i, n in enumerate(SIZES)]
group = session.declare("all", [*tensors, deft.Tensor("end", deft.FLOAT32, (1,), 0)])
numbers = {n: np.arange(n, dtype=np.float32) % 1000 for n in SIZES}
step, most, end = 0, int(os.environ.get("STEPS", 1 << 30)), os.environ.get("END", "")
while step < most:
    session.stage(deft.FORWARD, step)
    time.sleep(float(os.environ.get("COMPUTE", 0)))
    session.stage(deft.BACKWARD, step)
    for index, n in enumerate(SIZES):
        vector(group, index)[:] = (rank + 1) * (numbers[n] + step % 100)
        group.ready(index, 1, step)
    vector(group, len(SIZES))[:] = float(rank == 0 and os.path.exists(end))
    group.ready(len(SIZES), 1, step)
    for index, n in enumerate(SIZES):
        group.wait(index, 1, step)
        if not np.array_equal(vector(group, index), size * (size + 1) // 2 * (numbers[n] + step % 100)):
            sys.exit(f"step {step}: the sum of tensor {index} is wrong")
    group.wait(len(SIZES), 1, step)
    ends = vector(group, len(SIZES))[0] > 0
    step += 1
    if step == 5:
        say("five steps")
    if ends:
        break
say(f"steps {step}")
session.close()
"""


TUNE = [BUILD / "bin/deft", "tune", "--patience", "120"]


def tune(*words: str) -> subprocess.CompletedProcess:
    return subprocess.run([*TUNE, *words], capture_output=True, text=True, check=False)


def settings_of(cluster: Cluster) -> dict[str, str]:
    return {name: str(value) for name, value in cluster.status(0)["jobs"][0]["leader"]["settings"].items()}


def test_a_running_job_is_tuned_and_its_sums_stay_right(tmp_path):
    flags = tmp_path / "tuned.flags"
    with Cluster(2, policy="fifo", partition_bytes="16KB", credit_bytes="64KB") as cluster:
        end = Path(cluster.folder.name, "end")
        workers = cluster.start(TRAIN, DEFT_JOB="mine", END=str(end))
        for worker in workers:
            wait_for_line(worker, "five steps")
        where = ("--socket", cluster.socket(0), "-o", str(flags), "--trials", "2", "--steps", "4", "--json")
        own = settings_of(cluster)
        with subprocess.Popen([*TUNE, *where, "--job", "mine"]) as ended:
            wait_until(lambda: settings_of(cluster)["policy"] == "bytescheduler", what="the first trial")
            ended.terminate()
        assert ended.returncode == 143 and settings_of(cluster) == own
        done = tune(*where, "--job", "mine")
        assert done.returncode == 0, done.stderr
        result = json_of(done)
        assert result["own"] == {"policy": "fifo", "partition_bytes": "16384", "credit_bytes": "65536"}
        assert [trial["policy"] for trial in result["trials"]] == ["bytescheduler"] * 2
        assert result["trials"][0]["partition_bytes"] == "65536"
        assert all(trial["step_us"] > 0 and trial["pairs"] >= 2 for trial in result["trials"])
        assert result["final"]["pairs"] >= 2 and flags.exists() == result["worth_it"]
        assert settings_of(cluster) == (result["options"] or result["own"])
        elsewhere = tune("--socket", cluster.socket(1), "--job", "mine")
        assert elsewhere.returncode == 1 and "run deft tune on the node of rank 0" in elsewhere.stderr
        unknown = tune("--socket", cluster.socket(0), "--job", "yours")
        assert unknown.returncode == 2 and "no job 'yours' runs on this daemon" in unknown.stderr
        end.touch()
        outputs = {output.splitlines()[-1] for output in cluster.finish(workers)}
        assert len(outputs) == 1 and next(iter(outputs)).startswith("steps ")


def test_a_command_is_started_and_its_job_found_and_it_may_end_first(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(IMPORTS + "session = deft.open()\nrank, size = session.rank, session.size\n" + TRAIN)
    job = [str(BUILD / "bin/deftrun"), "-np", "2", "--nodes", "2", sys.executable, str(script)]
    flags, end = tmp_path / "tuned.flags", tmp_path / "end"
    variables = {"COMPUTE": "0.02", "END": str(end), "PYTHONPATH": str(BUILD / "python")}
    with subprocess.Popen(
        [*TUNE, "-o", flags, *job],
        env=os.environ | variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as tuning:
        lines = []
        for line in tuning.stdout:
            lines.append(line)
            if line.endswith(" a step\n"):  # of the job as it is: the first trial begins
                end.touch()
        assert tuning.wait() == 0, "".join(lines) + tuning.stderr.read()
    assert end.exists(), lines
    steps = {line.partition("steps ")[2] for line in lines if line.startswith(("[0] steps ", "[1] steps "))}
    assert len(steps) == 1, lines
    assert any("the job ended after" in line for line in lines), lines
    assert not flags.exists()

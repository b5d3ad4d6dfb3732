"""What the commands for traces say of a training of any framework."""

import json

from cluster import deft, wait_until


def good(*words):
    done = deft(*words)
    assert done.returncode == 0, done.stderr
    return done.stdout


def are_complete(folder):
    """The daemons finish their files when the workers have left. On a busy machine merge may name other faults, too."""
    merged = deft("trace", "merge", str(folder), "--chrome")
    return merged.returncode == 0 and "not finished" not in merged.stderr and "is missing" not in merged.stderr


def check_traces(folder, least_steps):
    """Two nodes have written them: stages and gradients of each whole step, and what replay and explain need."""
    wait_until(lambda: are_complete(folder), 240, "the end of the traces")
    events = json.loads((folder / "merged.json").read_text())
    for node in (0, 1):
        own = [event for event in events if event["pid"] == node and event["ph"] != "M"]
        for stage in ("forward ", "backward "):
            assert sum(event["name"].startswith(stage) for event in own) >= least_steps, (node, stage)
        gradients = [event["name"] for event in own if event["cat"] == "gradient"]
        assert len(gradients) >= least_steps and not any(name.startswith("tensor ") for name in gradients), gradients
    (replayed,) = json.loads(good("replay", str(folder), "--json"))
    assert all(replayed[key] > 0 for key in ("compute_us", "step_us_p50", "measured_step_us_p50")), replayed
    first, *rest = good("explain", str(folder)).splitlines()
    assert first and any(line.startswith("where a step's time goes") for line in rest)
    assert all(cause["cause"] for cause in json.loads(good("explain", str(folder), "--json")))

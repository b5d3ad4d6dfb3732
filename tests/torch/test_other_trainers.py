"""Accelerate, the Trainer of transformers and Lightning over Deft. scripts/setup does not install these packages."""

from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples/torch"


@pytest.mark.parametrize(
    ("package", "script"),
    [
        ("accelerate", "accelerate_ddp.py"),
        ("transformers", "hugging_face_trainer.py"),
        ("lightning", "lightning_ddp.py"),
    ],
)
def test_the_example_trains_over_deft(start, monkeypatch, package, script):
    pytest.importorskip(package)
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "test")  # by this Lightning knows torchrun
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    cluster = start(2, policy="bytescheduler")
    results = cluster.run_as_torchrun(EXAMPLES / script)
    assert [status for status, _ in results] == [0, 0], results
    assert "backend deft, " in results[0][1] and "replicas equal: True" in results[0][1], results[0][1]
    assert f"[job{cluster.jobs}] group 'ddp.0'" in (cluster.folder / "daemon0.log").read_text()

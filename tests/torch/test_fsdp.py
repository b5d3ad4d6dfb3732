"""FSDP2 with Deft between nodes: the example, compared with one process that has the whole batch."""

import re
from pathlib import Path

import pytest
import torch

EXAMPLE = Path(__file__).resolve().parents[2] / "examples/torch/fsdp2.py"


def losses_of_one_process(ranks):
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(64, 512), torch.nn.ReLU(), torch.nn.Linear(512, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    samples = [torch.Generator().manual_seed(100 + rank) for rank in range(ranks)]
    losses = []
    for _ in range(20):
        inputs = torch.cat([torch.randn(32, 64, generator=generator) for generator in samples])
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(inputs), inputs[:, :10].argmax(1))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def test_two_shards_by_two_nodes_train_as_one_process_does(start):
    results = start(2).run_as_torchrun(EXAMPLE, workers=4)
    assert [status for status, _ in results] == [0] * 4, results
    found = [float(text) for text in re.findall(r"loss ([\d.]+)", results[0][1])]
    assert found == pytest.approx(losses_of_one_process(4), abs=2e-5)
    assert len({re.search(r"parameters (\w+)", output)[1] for _, output in results}) == 1

"""Accelerate over Deft. On the CPU it refuses other names than gloo and mpi, but takes a process group that is there.

torchrun --nproc-per-node 2 examples/torch/accelerate_ddp.py          (needs a running daemon)
"""

import deft.torch  # noqa: F401  registers the backend
import torch
from accelerate import Accelerator

torch.distributed.init_process_group("deft")
accelerator = Accelerator(cpu=True)
torch.manual_seed(1)
model = torch.nn.Sequential(torch.nn.Linear(64, 512), torch.nn.ReLU(), torch.nn.Linear(512, 10))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
inputs = torch.randn(640, 64, generator=torch.Generator().manual_seed(2))
data = torch.utils.data.TensorDataset(inputs, inputs[:, :10].argmax(1))
model, optimizer, loader = accelerator.prepare(model, optimizer, torch.utils.data.DataLoader(data, batch_size=32))
for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x), y)
        accelerator.backward(loss)
        optimizer.step()
    accelerator.print(f"epoch {epoch}: loss {accelerator.reduce(loss.detach(), 'mean').item():.5f}")
digest = accelerator.gather(torch.stack([p.detach().double().sum() for p in model.parameters()]).sum().reshape(1))
accelerator.print(f"backend {torch.distributed.get_backend()}, replicas equal: {digest.unique().numel() == 1}")
accelerator.end_training()

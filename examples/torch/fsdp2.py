"""FSDP2 with Deft: parameters are sharded inside a node, and Deft averages the shards' gradients between the nodes.

    torchrun --nnodes 2 --nproc-per-node 2 --rdzv-backend c10d --rdzv-endpoint HOST:29500 examples/torch/fsdp2.py

A daemon runs on each node. The workers that hold the same shard, one a node, are a job of Deft of their own.
"""

import hashlib
import os

import deft.torch as hvd
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard

dist.init_process_group("gloo")  # inside the node: all-gather and reduce-scatter
rank, local_rank, local_size = dist.get_rank(), int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"])
nodes = dist.get_world_size() // local_size
job = os.environ.get("DEFT_JOB", "fsdp")
hvd.init(job=f"{job}.shard{local_rank}", rank=rank // local_size, world_size=nodes, local_rank=0, local_size=1)

# One dimension for FSDP. With a mesh of two dimensions FSDP would average between nodes by itself, and Deft once more.
mesh = init_device_mesh("cpu", (nodes, local_size), mesh_dim_names=("node", "shard"))["shard"]
torch.manual_seed(1)
model = torch.nn.Sequential(torch.nn.Linear(64, 512), torch.nn.ReLU(), torch.nn.Linear(512, 10))
for layer in (model[0], model[2], model):
    fully_shard(layer, mesh=mesh)
for module in model.modules():
    if isinstance(module, FSDPModule):
        module.set_all_reduce_hook(hvd.allreduce_)

optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
samples = torch.Generator().manual_seed(100 + rank)
for step in range(20):
    inputs = torch.randn(32, 64, generator=samples)
    optimizer.zero_grad()
    loss = torch.nn.functional.cross_entropy(model(inputs), inputs[:, :10].argmax(1))
    loss.backward()
    optimizer.step()
    mean = loss.detach().clone()
    dist.all_reduce(mean, op=dist.ReduceOp.AVG)
    if rank == 0:
        print(f"step {step}: loss {mean.item():.5f}", flush=True)

whole = b"".join(parameter.full_tensor().detach().numpy().tobytes() for parameter in model.parameters())
print(f"rank {rank}: parameters {hashlib.sha256(whole).hexdigest()[:16]}", flush=True)
hvd.shutdown()
dist.destroy_process_group()

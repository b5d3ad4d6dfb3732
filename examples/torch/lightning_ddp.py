"""Lightning over Deft: the backend is given by DDPStrategy(process_group_backend=).

torchrun --nproc-per-node 2 examples/torch/lightning_ddp.py           (needs a running daemon)
"""

import os

import deft.torch  # noqa: F401  registers the backend
import lightning
import torch
from lightning.pytorch.strategies import DDPStrategy


class Classifier(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(64, 512), torch.nn.ReLU(), torch.nn.Linear(512, 10))

    def training_step(self, batch, _):
        x, y = batch
        loss = torch.nn.functional.cross_entropy(self.layers(x), y)
        self.log("loss", loss, sync_dist=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


lightning.seed_everything(1)
model = Classifier()
inputs = torch.randn(640, 64, generator=torch.Generator().manual_seed(2))
data = torch.utils.data.TensorDataset(inputs, inputs[:, :10].argmax(1))
trainer = lightning.Trainer(
    accelerator="cpu",
    devices=int(os.environ["LOCAL_WORLD_SIZE"]),
    num_nodes=int(os.environ["WORLD_SIZE"]) // int(os.environ["LOCAL_WORLD_SIZE"]),
    strategy=DDPStrategy(process_group_backend="deft"),
    max_epochs=2,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
)
trainer.fit(model, torch.utils.data.DataLoader(data, batch_size=32))
total = torch.stack([p.detach().double().sum() for p in model.parameters()]).sum()
equal = trainer.strategy.all_gather(total).unique().numel() == 1
if trainer.is_global_zero:
    loss = trainer.callback_metrics["loss"].item()
    print(f"backend {torch.distributed.get_backend()}, loss {loss:.5f}, replicas equal: {equal}", flush=True)

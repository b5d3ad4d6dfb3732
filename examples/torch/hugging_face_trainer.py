"""The Trainer of transformers over Deft. Its ddp_backend refuses the name on the CPU; an open process group is used.

torchrun --nproc-per-node 2 examples/torch/hugging_face_trainer.py    (needs a running daemon)
"""

import tempfile

import deft.torch  # noqa: F401  registers the backend
import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

torch.distributed.init_process_group("deft")
torch.manual_seed(1)
config = BertConfig(
    vocab_size=100, hidden_size=64, num_hidden_layers=2, num_attention_heads=2, intermediate_size=128, num_labels=2
)
model = BertForSequenceClassification(config)
words = torch.randint(100, (256, 16), generator=torch.Generator().manual_seed(2))
data = [{"input_ids": row, "labels": int(row[0]) % 2} for row in words]
arguments = TrainingArguments(
    output_dir=tempfile.mkdtemp(),
    use_cpu=True,
    num_train_epochs=2,
    per_device_train_batch_size=16,
    logging_steps=4,
    save_strategy="no",
    report_to=[],
    disable_tqdm=True,
)
trainer = Trainer(model=model, args=arguments, train_dataset=data)
trainer.train()
total = torch.stack([p.detach().double().sum() for p in model.parameters()]).sum().reshape(1)
totals = [torch.empty_like(total) for _ in range(torch.distributed.get_world_size())]
torch.distributed.all_gather(totals, total)
if torch.distributed.get_rank() == 0:
    print(f"backend {torch.distributed.get_backend()}, replicas equal: {all(t == total for t in totals)}", flush=True)

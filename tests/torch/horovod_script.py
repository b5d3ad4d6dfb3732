"""A training script as Horovod's users write it; only the import differs. It learns to tell made-up digits apart."""

import argparse

import deft.torch as hvd
import torch
import torch.utils.data.distributed
from torch import nn, optim
from torch.nn import functional

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=16)
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--lr", type=float, default=0.05)
parser.add_argument("--fp16-allreduce", action="store_true")
parser.add_argument("--use-adasum", action="store_true")
parser.add_argument("--gradient-predivide-factor", type=float, default=1.0)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 6, kernel_size=3)
        self.conv2 = nn.Conv2d(6, 8, kernel_size=3)
        self.drop = nn.Dropout2d(0.02)
        self.fc1 = nn.Linear(8 * 2 * 2, 24)
        self.fc2 = nn.Linear(24, 4)

    def forward(self, x):
        x = functional.relu(functional.max_pool2d(self.conv1(x), 2))
        x = functional.relu(self.drop(self.conv2(x)))
        x = functional.max_pool2d(x, 1)[:, :, :2, :2].flatten(1)
        return functional.log_softmax(self.fc2(functional.relu(self.fc1(x))), dim=1)


def digits(count, seed):
    generator = torch.Generator().manual_seed(seed)
    patterns = torch.randn(4, 1, 12, 12, generator=torch.Generator().manual_seed(0))
    labels = torch.randint(4, (count,), generator=generator)
    images = patterns[labels] + 0.3 * torch.randn(count, 1, 12, 12, generator=generator)
    return torch.utils.data.TensorDataset(images, labels)


def metric_average(value, name):
    return hvd.allreduce(torch.tensor(value), name=name).item()


def train(epoch):
    model.train()
    train_sampler.set_epoch(epoch)
    for data, target in train_loader:
        optimizer.zero_grad()
        loss = functional.nll_loss(model(data), target)
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch} [{len(train_sampler)}/{len(train_dataset)}] loss {loss.item():.4f}", flush=True)


def test():
    model.eval()
    test_loss = test_accuracy = 0.0
    for data, target in test_loader:
        output = model(data)
        test_loss += functional.nll_loss(output, target, reduction="sum").item()
        test_accuracy += (output.argmax(1) == target).float().sum().item()
    test_loss = metric_average(test_loss / len(test_sampler), "avg_loss")
    test_accuracy = metric_average(test_accuracy / len(test_sampler), "avg_accuracy")
    if hvd.rank() == 0:
        print(f"Test set: average loss {test_loss:.4f}, accuracy {100 * test_accuracy:.2f}%", flush=True)


if __name__ == "__main__":
    args = parser.parse_args()
    hvd.init()
    torch.manual_seed(42)
    torch.set_num_threads(1)
    assert not hvd.mpi_threads_supported()

    kwargs = {"num_workers": 1}
    train_dataset, test_dataset = digits(512, 1), digits(64, 2)
    train_sampler = torch.utils.data.distributed.DistributedSampler(
        train_dataset, num_replicas=hvd.size(), rank=hvd.rank()
    )
    train_loader = torch.utils.data.DataLoader(
        train_dataset, batch_size=args.batch_size, sampler=train_sampler, **kwargs
    )
    test_sampler = torch.utils.data.distributed.DistributedSampler(
        test_dataset, num_replicas=hvd.size(), rank=hvd.rank()
    )
    test_loader = torch.utils.data.DataLoader(test_dataset, batch_size=32, sampler=test_sampler, **kwargs)

    model = Net()
    lr_scaler = hvd.size() if not args.use_adasum else hvd.local_size() if hvd.nccl_built() else 1
    optimizer = optim.SGD(model.parameters(), lr=args.lr * lr_scaler, momentum=0.5)

    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)

    compression = hvd.Compression.fp16 if args.fp16_allreduce else hvd.Compression.none
    optimizer = hvd.DistributedOptimizer(
        optimizer,
        named_parameters=model.named_parameters(),
        compression=compression,
        op=hvd.Adasum if args.use_adasum else hvd.Average,
        gradient_predivide_factor=args.gradient_predivide_factor,
    )
    for number in range(1, args.epochs + 1):
        train(number)
        test()

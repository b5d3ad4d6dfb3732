"""Process groups of torch.distributed in jobs of the tests."""

import contextlib

import deft
import deft.torch as hvd
import torch.distributed as dist

kept = []


def open_group(port, backend="deft", name="a", **options):
    store = dist.TCPStore("127.0.0.1", port, hvd.size(), is_master=hvd.rank() == 0)
    options |= {"store": dist.PrefixStore(name, store), "rank": hvd.rank(), "world_size": hvd.size()}
    dist.init_process_group(backend, **options)


def close_group():
    if dist.get_backend() == "gloo":
        kept.append(dist.group.WORLD)  # if DDP's reducer frees it, torch may wait for ever for a thread of gloo
    dist.destroy_process_group()


@contextlib.contextmanager
def count_groups():
    """Gives a list that has the number of tensors of each declared group."""
    declared, declare = [], deft.Session.declare
    deft.Session.declare = lambda one, name, tensors, *more, **named: (
        declared.append(len(tensors)) or declare(one, name, tensors, *more, **named)
    )
    try:
        yield declared
    finally:
        deft.Session.declare = declare

"""Sparse gradients (Embedding(sparse=True)): gathered from all ranks instead of summed in the arena."""

import torch

from .collectives import start_allgather


def exchange_sparse(name, param, scale, process_set):
    """Sets p.grad to the sum over all ranks of the sparse p.grad * scale; a rank without a gradient gives no rows."""
    grad = param.grad
    if grad is None:
        no_rows = torch.empty((0, *param.shape[1:]), dtype=param.dtype)
        grad = torch.sparse_coo_tensor(torch.empty((1, 0), dtype=torch.int64), no_rows, param.shape)
    elif not grad.is_sparse:
        grad = grad.to_sparse(1)
    grad = grad.detach().coalesce()
    terms = f" (gradient of {list(param.shape)})"
    indices = start_allgather(grad.indices().t(), f"{name}.indices", process_set, terms)
    values = start_allgather(grad.values() * scale, f"{name}.values", process_set, terms)
    total = torch.sparse_coo_tensor(indices.wait().t(), values.wait(), param.shape)
    param.grad = total.coalesce().to(param.device)

"""How torch's dtypes are named by Deft, and tensors as plain memory."""

import deft

import torch

TO_DEFT = {
    torch.float32: deft.FLOAT32,
    torch.float64: deft.FLOAT64,
    torch.float16: deft.FLOAT16,
    torch.bfloat16: deft.BFLOAT16,
    torch.int32: deft.INT32,
    torch.int64: deft.INT64,
    torch.uint8: deft.UINT8,
    torch.int8: deft.INT8,
}
GRADIENT_DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
HALVES = (torch.float16, torch.bfloat16)


def reducible(dtype, what):
    """Deft's number of a dtype that can be summed; an error that names `what` for the others."""
    try:
        return TO_DEFT[dtype]
    except KeyError:
        known = ", ".join(str(known).removeprefix("torch.") for known in TO_DEFT)
        raise ValueError(f"{what} is {dtype}, which cannot be reduced; convert it to one of {known}") from None


def in_memory(tensor):
    """The values of `tensor` as contiguous host memory: itself if it is that already."""
    tensor = tensor.detach()
    if tensor.device.type != "cpu":
        tensor = tensor.cpu()
    return tensor.contiguous().resolve_conj().resolve_neg()


def as_bytes(tensor):
    """A flat uint8 view of a contiguous tensor."""
    return tensor.reshape(-1).view(torch.uint8) if tensor.numel() else torch.empty(0, dtype=torch.uint8)

"""The same start on every rank: parameters, optimizer state and Python objects from one rank to all.

Tensors travel in flat chunks of bytes, so a model of a thousand small tensors costs a few messages.
"""

import collections.abc
import io
import pickle

from deft.names import wire_name
from deft.process_sets import global_process_set
from deft.reduce_op import Max
from deft.world import flush_all

import torch

from .collectives import allgather_async, allreduce_async, broadcast_async, broadcast_async_
from .dtypes import as_bytes, in_memory
from .keras_names import with_common_names

_CHUNK_BYTES = 32 << 20
_ALL = global_process_set


def broadcast_object(obj, root_rank=0, name=None, process_set=_ALL):
    """`obj` of rank `root_rank` on every rank; anything that pickle can carry."""
    name = wire_name("broadcast", name, process_set.session()) + ".object"
    is_root = process_set.rank() == process_set.place_of(root_rank)
    data = torch.empty(0, dtype=torch.uint8)
    if is_root:
        data = torch.frombuffer(bytearray(pickle.dumps(obj)), dtype=torch.uint8)
    size = torch.tensor([data.numel()])
    length = broadcast_async(size, root_rank, name + ".size", process_set).wait().item()
    if not is_root:
        data = torch.empty(length, dtype=torch.uint8)
    data = broadcast_async(data, root_rank, name, process_set).wait()
    return obj if is_root else pickle.loads(data.numpy().tobytes())


def allgather_object(obj, name=None, process_set=_ALL):
    """The objects of all ranks, as a list in the order of ranks."""
    name = wire_name("allgather", name, process_set.session()) + ".object"
    data = torch.frombuffer(bytearray(pickle.dumps(obj)), dtype=torch.uint8)
    lengths = allgather_async(torch.tensor([data.numel()]), name + ".size", process_set).wait().tolist()
    pieces = allgather_async(data, name, process_set).wait().split(lengths)
    return [pickle.loads(piece.numpy().tobytes()) for piece in pieces]


def broadcast_parameters(params, root_rank=0, process_set=_ALL):
    """Gives every rank the tensors of rank `root_rank`: `params` is a state_dict(), named_parameters() or parameters().

    ValueError on all ranks if some have other tensors than the root.
    """
    flush_all()
    pairs = _named_tensors(params)
    if process_set.size() > 1:
        _compare([(name, str(tensor.dtype), tuple(tensor.shape)) for name, tensor in pairs], root_rank, process_set)
    _broadcast_tensors([tensor for _, tensor in pairs], root_rank, process_set)


def broadcast_optimizer_state(optimizer, root_rank=0, model=None, process_set=_ALL):
    """Gives every rank the optimizer state and hyper-parameters of rank `root_rank`. `model` is not needed."""
    if isinstance(optimizer, torch.optim.LBFGS):
        raise ValueError("broadcast_optimizer_state cannot carry torch.optim.LBFGS; broadcast the parameters only")
    is_root = process_set.rank() == process_set.place_of(root_rank)
    tensors = []
    skeleton = _Dismantler.dismantle(optimizer.state_dict(), tensors) if is_root else None
    shapes = [(tensor.dtype, tuple(tensor.shape)) for tensor in tensors]
    skeleton, shapes = broadcast_object((skeleton, shapes), root_rank, process_set=process_set)
    if not is_root:
        tensors = [torch.empty(shape, dtype=dtype) for dtype, shape in shapes]
    _broadcast_tensors(tensors, root_rank, process_set)
    if not is_root:
        optimizer.load_state_dict(_Assembler.assemble(skeleton, tensors))


def _named_tensors(params):
    if isinstance(params, collections.abc.Mapping):
        pairs = sorted(params.items(), key=lambda pair: str(pair[0]))  # ranks may have filled it in other orders
    else:
        pairs = [(f"parameter {i}", one) if isinstance(one, torch.Tensor) else one for i, one in enumerate(params)]
        if not all(isinstance(pair, tuple) and len(pair) == 2 for pair in pairs):
            raise ValueError(
                "broadcast_parameters wants model.state_dict(), model.named_parameters() or model.parameters()"
            )
    tensors = [(str(name), value.data) for name, value in pairs if isinstance(value, torch.Tensor)]
    return with_common_names(tensors)


def _compare(mine, root_rank, process_set):
    """`mine`: (name, dtype, shape) of each tensor of this rank. All ranks find the same, so none waits for another."""
    roots = broadcast_object(mine, root_rank, process_set=process_set)
    differs = torch.tensor([mine != roots], dtype=torch.uint8)
    if not allreduce_async(differs, op=Max, process_set=process_set).wait().item():
        return
    found = allgather_object(_difference(mine, roots, root_rank), process_set=process_set)
    raise ValueError(f"broadcast_parameters: {next(filter(None, found))}; build the same model on every rank")


def _difference(mine, roots, root_rank):
    """What this rank has unlike the root; empty: nothing."""
    for own, other in zip(mine, roots):
        if own != other:
            return f"rank {_ALL.rank()} has {_describe(own)} where rank {root_rank} has {_describe(other)}"
    if len(mine) == len(roots):
        return ""
    return f"rank {_ALL.rank()} has {len(mine)} tensors and rank {root_rank} has {len(roots)}"


def _describe(entry):
    name, dtype, shape = entry
    return f"{name} {dtype.removeprefix('torch.')} {list(shape)}"


def _broadcast_tensors(tensors, root_rank, process_set):
    chunk, chunk_bytes = [], 0
    for tensor in tensors:
        if tensor.numel() == 0:
            continue
        tensor_bytes = tensor.numel() * tensor.element_size()
        if tensor_bytes >= _CHUNK_BYTES:
            broadcast_async_(tensor, root_rank, process_set=process_set).wait()
            continue
        chunk.append(tensor)
        chunk_bytes += tensor_bytes
        if chunk_bytes >= _CHUNK_BYTES:
            _broadcast_chunk(chunk, root_rank, process_set)
            chunk, chunk_bytes = [], 0
    if chunk:
        _broadcast_chunk(chunk, root_rank, process_set)


def _broadcast_chunk(tensors, root_rank, process_set):
    flat = torch.cat([as_bytes(in_memory(tensor)) for tensor in tensors])
    flat = broadcast_async(flat, root_rank, process_set=process_set).wait()
    if process_set.rank() == process_set.place_of(root_rank):
        return
    offset = 0
    for tensor in tensors:
        end = offset + tensor.numel() * tensor.element_size()
        piece = flat[offset:end].clone()  # aligned for its dtype
        tensor.copy_(piece.view(tensor.dtype).reshape(tensor.shape))
        offset = end


class _Dismantler(pickle.Pickler):
    """Pickles an object without the contents of its tensors, which go into a list."""

    @classmethod
    def dismantle(cls, obj, tensors):
        out = io.BytesIO()
        pickler = cls(out)
        pickler.tensors = tensors
        pickler.dump(obj)
        return out.getvalue()

    def persistent_id(self, obj):
        if not isinstance(obj, torch.Tensor):
            return None
        self.tensors.append(obj.detach())
        return len(self.tensors) - 1


class _Assembler(pickle.Unpickler):
    """The reverse: puts the tensors of a list back into their places."""

    @classmethod
    def assemble(cls, data, tensors):
        unpickler = cls(io.BytesIO(data))
        unpickler.tensors = tensors
        return unpickler.load()

    def persistent_load(self, index):
        return self.tensors[index]

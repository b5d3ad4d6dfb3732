"""The key-value store `deft`: mx.kv.create("deft"), for gluon's Trainer and for Module.

It sums over all ranks, as MXNet's own distributed stores do; updates are made by each worker.
"""

import functools

from deft.codec import Codec
from deft.world import rank, size

from .collectives import broadcast_
from .importing import mxnet as mx
from .keyed import KeyedGradients
from .starting import init

KVStoreBase = mx.kvstore.KVStoreBase


def _listed(values):
    return list(values) if isinstance(values, (list, tuple)) else [values]


@KVStoreBase.register
class Deft(KVStoreBase):
    """A key of `pushpull` is one gradient of a step, and `priority` says how early forward uses it."""

    def __init__(self):
        init()
        self._gradients = KeyedGradients()

    def broadcast(self, key, value, out, priority=0):
        """Writes rank 0's value to all of `out`, on every rank."""
        for one_key, its_value, outs in self._triples(key, value, out):
            received = its_value.copy()
            if size() > 1:  # keys are numbers, which other stores have, too
                broadcast_(received, 0, f"kvstore.{self._gradients.number()}.{one_key}", priority)
            for one in outs:
                received.copyto(one)

    def pushpull(self, key, value, out=None, priority=0):
        """Writes the sum of all ranks' values to `out`, or to `value`."""
        for one_key, its_value, outs in self._triples(key, value, value if out is None else out):
            total = functools.reduce(lambda a, b: a + b.as_in_context(a.context), _listed(its_value))
            if size() > 1:
                self._gradients.push(one_key, total, outs[0], priority)
            elif outs[0] is not total:
                total.copyto(outs[0])
            for one in outs[1:]:
                outs[0].copyto(one)

    def set_gradient_compression(self, compression_params):
        """Trainer(compression_params={"type": "int8"}) calls this; the types are Deft's codecs."""
        given = dict(compression_params)
        kind = given.pop("type", None)
        if given or kind in ("1bit", "2bit"):
            raise ValueError(
                f"compression_params is {compression_params}; the store `deft` takes a codec of its own and nothing "
                'else, for instance {"type": "int8"} or {"type": "topk/ratio=0.01"}'
            )
        self._gradients = KeyedGradients(compression=Codec(kind))

    def init(self, key, value):
        """Module calls this. As with MXNet's stores that do not update, it changes no parameter."""

    @staticmethod
    def is_capable(capability):
        if capability.lower() == KVStoreBase.OPTIMIZER:
            return False
        raise ValueError(f"unknown capability {capability}")

    @property
    def type(self):
        return "dist_sync_deft"  # Module counts the batches of all ranks for a dist_sync store

    @property
    def rank(self):
        return rank()

    @property
    def num_workers(self):
        return size()

    @staticmethod
    def _triples(key, value, out):
        """One (key, value, list of outs) for each key; a key has a value or a list of values, one a device."""
        if not isinstance(key, (list, tuple)):
            return [(key, value, _listed(out))]
        return [(one, its, _listed(outs)) for one, its, outs in zip(key, value, out)]


KVStoreBase.kv_registry["dist_deft"] = Deft


def _let_make_by_name(module):
    """Lets Trainer and Module make a store for the name `deft`.

    If a worker has one device, MXNet itself makes none for a name without "dist", and nothing would be summed.
    """
    create = module._create_kvstore

    @functools.wraps(create)
    def created(kvstore, *arguments, **named):
        is_name = isinstance(kvstore, str) and kvstore.lower() == "deft"
        return create(mx.kv.create(kvstore) if is_name else kvstore, *arguments, **named)

    module._create_kvstore = created


def _refuse_stale(method):
    """A store sees gradients and not whether backward has written them: the sum of an earlier step is summed again."""

    @functools.wraps(method)
    def checked(trainer, batch_size, ignore_stale_grad=False):
        if ignore_stale_grad:
            if not trainer._kv_initialized:
                trainer._init_kvstore()
            if isinstance(trainer._kvstore, Deft) and size() > 1:
                raise ValueError("the store `deft` takes no ignore_stale_grad=True: use deft.mxnet.DistributedTrainer")
        return method(trainer, batch_size, ignore_stale_grad)

    return checked


for _module in (mx.model, mx.gluon.trainer, mx.module.module):
    _let_make_by_name(_module)
for _name in ("step", "update"):
    setattr(mx.gluon.Trainer, _name, _refuse_stale(getattr(mx.gluon.Trainer, _name)))

"""torch.distributed over Deft: init_process_group("deft") or ("cpu:deft").

Deft runs all_reduce over all ranks of the job. The gradient buckets of DistributedDataParallel are scheduled by the
policy. Everything else runs on a process group of gloo over the same store (c10d_gloo.py): other operations, and
subgroups.

A process group in Python is a subclass of ProcessGroup. Its C++ base sends other methods to the backend that is
registered for the CPU, which is gloo. For some methods it holds Python's lock meanwhile, and one of gloo's threads may
wait for that lock. So those methods are called in Python, without the lock.
"""

import datetime
import itertools
import os
import socket
import sys
import time
import weakref

from deft import DeftError, world
from deft.reduce_op import Sum

import torch
import torch.distributed as dist

from .c10d_futures import next_name
from .c10d_gloo import GlooCollectives
from .c10d_reductions import find_op, reduce_at_once
from .c10d_work import DeftWork, as_backend_error
from .compiling import hidden_methods
from .ddp_buckets import BucketSequences, DefaultBucketSize, in_backward
from .dtypes import GRADIENT_DTYPES

NAME = "deft"
_DDP = torch.nn.parallel.distributed.__file__
_ENGINE = (torch.autograd.graph.__file__, torch.autograd.__file__)  # the latter in old versions of torch
_LAUNCHERS = (  # of torchrun, mpirun and srun: rank and size, and what a launcher sets beside them
    ("RANK", "WORLD_SIZE", "LOCAL_RANK"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
    ("SLURM_PROCID", "SLURM_NTASKS"),
)
_WARN_AFTER_S = 10.0  # a rank that has not made a subgroup by then is named in the log
_MOMENT = datetime.timedelta(milliseconds=200)
_JOINED = "_match_all_reduce_for_bwd_pass"  # DDP: a rank without samples takes part in the others' backward


_gloos = []  # (weak reference to a group, its process group of gloo): freed by _let_go()
_round = 0  # how often the store of the default group has been used for one


@hidden_methods
class DeftProcessGroup(GlooCollectives):
    """One process group. The first one opens this process's session, unless deft.torch.init() has done so."""

    def __init__(self, options, _backend_options=None):
        super().__init__(options.group_rank, options.group_size)
        self._store = _store_without_the_past(options)
        self._prefix = f"c10d.{options.group_id}"
        self._owns_session = False
        self._bucket_size = None
        self._numbers = itertools.count(1)
        self._buckets = BucketSequences()
        try:
            self._begin(options)
        except BaseException:
            self._leave()
            raise

    def _begin(self, options):
        if not options.global_ranks_in_group:
            self._owns_session = _open_session(options, self._store)
            _check_ranks(options)
            self._bucket_size = DefaultBucketSize()
        else:
            _await_members(options, self._store)
        self._whole = options.group_size == world.size()  # in any order: a reduction does not see it
        self.open_gloo(options, self._store, self._prefix if self._whole else None, self._numbers)
        self._set_default_backend(dist.ProcessGroup.BackendType.GLOO)
        self._register_backend(torch.device("cpu"), dist.ProcessGroup.BackendType.GLOO, self._gloo)
        if self._whole:
            world.session().joining.hindered_by.add(self)
        _let_go()
        _gloos.extend((weakref.ref(self), gloo) for gloo in self.gloos())

    def getBackendName(self):
        return NAME

    def get_group_store(self):
        return self._store

    def allreduce(self, tensors, opts=None, timeout=None, op=None):
        tensors = [tensors] if isinstance(tensors, torch.Tensor) else tensors
        options = _options(opts if op is None else op, timeout)
        op = find_op(options.reduceOp.op, tensors[0]) if self._whole and len(tensors) == 1 else None
        if op is None:  # what it cannot do either is its error
            return super().allreduce(tensors, options)
        what = f"all_reduce of {list(tensors[0].shape)} {str(tensors[0].dtype).removeprefix('torch.')}"
        work = DeftWork(tensors, what, self.limit_s([options]))
        try:
            self._start(work, tensors[0], op, sys._getframe(1))
        except (DeftError, ValueError) as error:
            work.end(error)
        return work

    def shutdown(self):
        super().shutdown()
        if world.is_in_job():
            world.session().joining.hindered_by.discard(self)
        self._leave()

    def _leave(self):
        if self._bucket_size is not None:
            self._bucket_size.restore()
            self._bucket_size = None
        if self._owns_session:
            self._owns_session = False
            world.shutdown()

    def _start(self, work, tensor, op, caller):
        if op is Sum and tensor.dtype in GRADIENT_DTYPES:
            place = self._buckets.place(tensor) if _by_ddp(caller, tensor) else None
            if place is not None:
                return self._schedule(work, tensor, *place)
        return reduce_at_once(work, next_name(self._prefix, self._numbers), tensor, op)

    def _schedule(self, work, tensor, group, place):
        work.calls_back = False  # DDP's reducer has asked for it, and waits
        group.send(
            place,
            tensor.detach(),
            lambda view, error: work.end_after(error, lambda: tensor.detach().copy_(view.view(tensor.shape))),
        )


def register():
    """Makes "deft" known to torch.distributed. Importing deft.torch does it; a second time does nothing."""
    if NAME not in dist.Backend.backend_list:
        dist.Backend.register_backend(NAME, DeftProcessGroup, extended_api=True, devices=["cpu"])


def _options(opts, timeout):
    """c10d's two ways to call allreduce: with AllreduceOptions, or with a ReduceOp."""
    if isinstance(opts, dist.AllreduceOptions):
        return opts
    options = dist.AllreduceOptions()
    if opts is not None:
        options.reduceOp = opts
    if timeout is not None:
        options.timeout = timeout
    return options


def _by_ddp(caller, tensor):
    """Whether DDP's reducer asks for a reduction, and not the script. All ranks must find the same.

    The reducer calls from C++ while autograd runs, so the caller is what has called the engine. If a bucket has no used
    parameter, the reducer calls at the end of forward. If anything else reduces in a backward, a hook or a DTensor, its
    own Python is the caller. A bucket has one dimension.
    """
    if caller.f_code.co_name == _JOINED:
        raise ValueError(
            "the join() of DistributedDataParallel does not work with backend='deft'; use a sampler that pads or drops"
        )
    file = caller.f_code.co_filename
    return tensor.dim() == 1 and (file == _DDP or (file in _ENGINE and in_backward()))


def _let_go():
    """Frees gloo's connections and threads of groups that are gone.

    It cannot be done when a group goes. The last one to hold it may be DDP's reducer, which holds Python's lock, and
    one of the threads may wait for that lock. If Python holds gloo alone, torch frees it without the lock.
    """
    _gloos[:] = [(group, gloo) for group, gloo in _gloos if group() is not None]


def _store_without_the_past(options):
    """The store without the keys of earlier groups: it may live on when they are destroyed, and torch then gives their
    names again."""
    global _round
    whole = not options.global_ranks_in_group
    store = options.store if whole else dist.PrefixStore(f"deft/{_round}", options.store)
    uses = store.add(f"deft/uses/{options.group_rank}", 1)  # the same on all ranks
    if whole:
        _round = uses
    return dist.PrefixStore(f"deft/{uses}", store)


def _open_session(options, store):
    """Opens the session, if none is open. Whether it was opened here."""
    if world.is_initialized():
        return False
    try:
        world.init(**_placement(options, store), **_stall_timeout(options))
    except DeftError as error:
        raise as_backend_error(error) from error
    return True


def _check_ranks(options):
    if (world.rank(), world.size()) != (options.group_rank, options.group_size):
        raise dist.DistBackendError(
            f"init_process_group has rank {options.group_rank} of {options.group_size}, and Deft's job has rank "
            f"{world.rank()} of {world.size()}: start both by one launcher, or give equal numbers"
        )


def _await_members(options, store):
    """Waits until all ranks of a subgroup are here: gloo would not say who is missing. Ctrl-C works meanwhile."""
    ranks, seconds = options.global_ranks_in_group, options.timeout.total_seconds()
    begins, warned = time.monotonic(), False
    store.set(_key_of(ranks[options.group_rank]), "1")
    missing = _missing(store, ranks)
    while missing:
        what, waited = f"new_group({ranks}): rank {', '.join(map(str, missing))}", time.monotonic() - begins
        if waited >= seconds:
            raise dist.DistBackendError(
                f"{what} did not make this group within {seconds:g} s; all ranks of the job call new_group, also those "
                "outside the group, and in the same order"
            )
        if waited >= _WARN_AFTER_S and not warned:
            world.log.warning("%s has not made this group yet", what)
            warned = True
        missing = _missing(store, missing)


def _missing(store, ranks):
    """Those of the ranks that have not come after a moment."""
    try:
        store.wait([_key_of(rank) for rank in ranks], _MOMENT)
    except RuntimeError:  # DistStoreError
        return [rank for rank in ranks if not store.check([_key_of(rank)])]
    return []


def _key_of(rank):
    return f"deft/here/{rank}"


def _stall_timeout(options):
    """The user's timeout also ends what no wait() of Python waits for, such as DDP's buckets."""
    seconds = options.timeout.total_seconds()
    default = dist.constants.default_pg_timeout.total_seconds()
    if seconds == default or "DEFT_STALL_TIMEOUT" in os.environ:
        return {}
    return {"stall_timeout": f"{min(max(seconds, 0.1), 864000.0)}s"}


def _placement(options, store):
    """Deft's options for the ranks that init_process_group was given, unless launchers' variables say the same.

    Variables may be those of something else: of the shell of a Slurm job, for one. All ranks decide alike."""
    if "DEFT_RANK" in os.environ:
        return {}
    names = [f"deft/host/{rank}" for rank in range(options.group_size)]
    mine = names[options.group_rank]
    store.set(mine, f"{'launched' if _is_launched_so(options) else 'given'} {socket.gethostname()}")
    told = [store.get(name).decode().split(" ", 1) for name in names]
    if all(source == "launched" for source, _ in told):
        return {}
    hosts = [host for _, host in told]
    here = [rank for rank, host in enumerate(hosts) if host == hosts[options.group_rank]]
    return {
        "rank": options.group_rank,
        "world_size": options.group_size,
        "local_rank": here.index(options.group_rank),
        "local_size": len(here),
    }


def _is_launched_so(options):
    """Whether the launcher's variables that Deft would take say the given rank and size."""
    for names in _LAUNCHERS:
        if all(os.environ.get(name) for name in names):
            return [os.environ[name] for name in names[:2]] == [str(options.group_rank), str(options.group_size)]
    return False

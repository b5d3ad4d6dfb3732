"""This process's place in the job: one session a process, for all frameworks. Needs no framework.

init() opens the session. shutdown() closes it, and so does the end of the process. After an uncaught exception nobody
says goodbye, so the other ranks hear of it at once.

A forked child, such as a DataLoader worker, keeps the numbers (rank(), size()) but not the session: collectives belong
to the process that called init().
"""

import atexit
import logging
import os
import sys
import threading
import weakref
from typing import NamedTuple

from deft._native import DeftError, option
from deft.session import Session, has_failed
from deft.session import open as open_session


class World(NamedTuple):
    rank: int
    size: int
    local_rank: int
    local_size: int
    node: int
    nodes: int


_lock = threading.Lock()
_session = None
_world = None
_owner = None  # pid of the process that opened the session
_options = {}  # of init()
_job = ""
_further = []  # sessions of process sets: see open_further()
_before_shutdown = []
_inherited = []  # sessions of the parent process: kept, so that no destructor closes them
_dependents = weakref.WeakKeyDictionary()  # distributed optimizers and their sessions: see depend()
log = logging.getLogger("deft")  # each framework's package logs to a child of it


def init(**options):
    """Attaches to this node's daemon and waits for the whole job; a second call does nothing.

    `options` are Deft's options by name (policy="bytescheduler", timeout="5s") and win over DEFT_* variables.
    """
    global _session, _world, _owner, _options, _job
    with _lock:
        if _session is not None:
            return
        session = open_session(**options)
        _session = session
        _options, _job = options, option("job")
        _world = World(session.rank, session.size, session.local_rank, session.local_size, session.node, session.nodes)
        _owner = os.getpid()
        _prepare_log()


def init_options():
    """The options that init() was given."""
    return dict(_options)


def shutdown():
    """Applies updates under way and leaves the job; without init() it does nothing.

    After the loss of a rank it leaves all the same, and the log says what is lost: then init() can begin anew."""
    global _session, _world
    if _session is None or _owner != os.getpid():
        return
    try:
        for function in _before_shutdown:
            function()
        release_dependents()
    finally:
        with _lock:
            session, _session, _world = _session, None, None
        for one in [*_further, session]:
            if one is not None:
                one.close()
        _further.clear()


def before_shutdown(function):
    """A decorator: shutdown() calls the function first, while all sessions are open."""
    _before_shutdown.append(function)
    return function


def open_further(job, **options) -> Session:
    """Another session of this process, with the options of init() and these. It ends with the first one at the latest.

    Its job is called as that of init(), and `job` after it."""
    further = open_session(**{**_options, **options, "job": f"{_job}.{job}"})
    _further.append(further)
    return further


def close_further(further):
    """Applies updates under way of the session's optimizers, and closes it. A second time does nothing."""
    try:
        release_dependents(further)
    finally:
        if further in _further:
            _further.remove(further)
        further.close()


def release_dependents(of=None):
    """Settles and releases the optimizers of the session `of`; None: of all."""
    for dependent, used in list(_dependents.items()):
        if of is None or used is of:
            try:
                _settle(dependent)
            finally:
                del _dependents[dependent]
                dependent.release()


def _settle(dependent):
    """Of a lost job nothing more comes: that is told, and whoever leaves goes on."""
    try:
        dependent.settle()
    except DeftError as error:
        log.error("updates under way are lost: %s", error)


def is_initialized():
    return _world is not None


def session() -> Session:
    """The open session; the error says which call is missing."""
    if _session is None:
        if _world is not None:
            raise RuntimeError(
                "this process was forked from a worker of Deft (a DataLoader worker, for instance): "
                "only the process that called init() can communicate"
            )
        raise ValueError("Deft has not been initialized: call init() first")
    return _session


def is_in_job():
    """Whether this process can communicate: it has called init() itself, and not shutdown()."""
    return _session is not None and _owner == os.getpid()


def world():
    if _world is None:
        raise ValueError("Deft has not been initialized: call init() first")
    return _world


def rank():
    """This worker's number in the job, from 0."""
    return world().rank


def size():
    """How many workers the job has."""
    return world().size


def local_rank():
    """This worker's number on its node, from 0."""
    return world().local_rank


def local_size():
    """How many workers of the job this node has."""
    return world().local_size


def cross_rank():
    """The number of this node, from 0."""
    return world().node


def cross_size():
    """How many nodes the job has."""
    return world().nodes


def is_homogeneous():
    """Whether every node has as many workers as this one."""
    counts = {}
    for other in range(size()):
        node = session().node_of(other)
        counts[node] = counts.get(node, 0) + 1
    return len(set(counts.values())) == 1


def depend(dependent, used=None):
    """Has dependent.settle() and dependent.release() called before the session `used` ends, and flush() by flush_all().

    None: the session of init()."""
    _dependents[dependent] = session() if used is None else used


def is_dependent(dependent):
    """Whether its session is still to end."""
    return dependent in _dependents


def dependents():
    """(optimizer, its session) of all that depend() was called for."""
    return list(_dependents.items())


def flush_all():
    """Applies the updates that optimizers with forward overlap still hold back."""
    for dependent in list(_dependents):
        dependent.flush()


def _prepare_log():
    level = option("log_level").upper()
    log.setLevel(logging.getLevelName(level))
    if not log.handlers and not logging.getLogger().handlers:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter(f"%(name)s rank {_world.rank}: %(levelname)s: %(message)s"))
        log.addHandler(handler)
        log.propagate = False


def _at_exit():
    """Before the base package leaves the job: the other ranks still count on what this one has handed over."""
    if _session is None or _owner != os.getpid() or has_failed():
        return
    for dependent in list(_dependents):
        _settle(dependent)


def _after_fork():
    global _session
    if _session is not None:
        _inherited.extend([_session, *_further])
        _further.clear()
        _session = None


atexit.register(_at_exit)  # exit handlers run in reverse order: this one before the base package's
os.register_at_fork(after_in_child=_after_fork)

"""A worker: worker.py SCENARIO,... in one session. Fails by an exception; prints what the test wants to know."""

import ctypes
import os
import random
import resource
import signal
import sys
import threading
import time

import deft
import numpy as np
from arena_memory import is_mapped, settled
from arrivals import await_all_workers
from held import held

FLOATS = {deft.FLOAT32: np.float32, deft.FLOAT64: np.float64, deft.FLOAT16: np.float16}
INTEGERS = {deft.INT32: np.int32, deft.INT64: np.int64, deft.UINT8: np.uint8, deft.INT8: np.int8}
TYPES = FLOATS | INTEGERS | {deft.BFLOAT16: np.uint16}  # bfloat16 as its bits


def to_wire(values, dtype):
    """Small whole numbers as `dtype`, exactly."""
    if dtype == deft.BFLOAT16:
        return (np.asarray(values, np.float32).view(np.uint32) >> 16).astype(np.uint16)
    return np.asarray(values).astype(TYPES[dtype])


def from_wire(array, dtype):
    if dtype == deft.BFLOAT16:
        return (array.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    return array.astype(np.float64)


def view(address, count, dtype):
    kind = np.dtype(TYPES[dtype])
    return np.frombuffer((ctypes.c_char * (count * kind.itemsize)).from_address(address), kind)


def numbers(rank, count, seed=0):
    """Whole numbers 0 to 10, other ones on each rank, known to all."""
    return np.random.default_rng([seed, rank, count]).integers(0, 11, count)


def reduced(op, session, count, seed=0):
    every = np.stack([numbers(rank, count, seed) for rank in range(session.size)])
    return {deft.SUM: every.sum(0), deft.MIN: every.min(0), deft.MAX: every.max(0)}[op]


def allreduce(session):
    for dtype in TYPES:
        for op in (deft.SUM, deft.MIN, deft.MAX):
            for count in (1, 7, 1009, 65537):
                data = to_wire(numbers(session.rank, count), dtype)
                session.allreduce(f"{dtype}.{op}", data.ctypes.data, count, dtype, op).finish(data.ctypes.data)
                assert (from_wire(data, dtype) == reduced(op, session, count)).all(), (dtype, op, count)


def large_allreduce(session):
    count = 3_000_017
    data = to_wire(numbers(session.rank, count), deft.FLOAT32)
    session.allreduce("large", data.ctypes.data, count, deft.FLOAT32).finish(data.ctypes.data)
    assert (data == reduced(deft.SUM, session, count)).all()


def broadcast(session):
    for root in range(session.size):
        for dtype in TYPES:
            for count in (1, 1009):
                data = to_wire(numbers(session.rank, count), dtype)
                session.broadcast("b", data.ctypes.data, count, dtype, root).finish(data.ctypes.data)
                assert (data == to_wire(numbers(root, count), dtype)).all(), (root, dtype, count)


def allgather(session):
    for counts in ([1] * session.size, list(range(session.size)), [0] * (session.size - 1) + [1009]):
        for dtype in (deft.FLOAT32, deft.UINT8, deft.INT64, deft.BFLOAT16):
            mine = to_wire(numbers(session.rank, counts[session.rank]), dtype)
            everything = np.zeros(sum(counts), TYPES[dtype])
            address = everything.ctypes.data
            session.allgather("g", mine.ctypes.data, counts, dtype).finish(address)
            expected = [to_wire(numbers(rank, counts[rank]), dtype) for rank in range(session.size)]
            assert (everything == np.concatenate(expected)).all(), (counts, dtype)


def nothing(session):
    """Collectives over no elements end, too."""
    session.allreduce("none", 0, 0, deft.FLOAT32).finish()
    session.allgather("none", 0, [0] * session.size, deft.FLOAT32).finish()
    session.broadcast("none", 0, 0, deft.FLOAT32).finish()


def barrier(session):
    for i in range(5):
        if session.rank == i % session.size:
            time.sleep(0.05)
        entered = time.monotonic_ns()
        session.barrier(f"b{i}")
        left = time.monotonic_ns()
        late = np.array([entered], np.int64)
        session.allreduce("late", late.ctypes.data, 1, deft.INT64, deft.MAX).finish(late.ctypes.data)
        assert left >= late[0], "somebody left before the last one came"


def many_at_once(session):
    """All under way together, asked for in another order on each rank."""
    data = [to_wire(numbers(session.rank, 1 + i * 37 % 5000, i), deft.FLOAT32) for i in range(300)]
    order = list(range(300))
    random.Random(session.rank).shuffle(order)
    operations = {}
    for i in order:
        operations[i] = session.allreduce(f"m{i}", data[i].ctypes.data, len(data[i]), deft.FLOAT32)
    for i, operation in operations.items():
        operation.finish(data[i].ctypes.data)
        assert (data[i] == reduced(deft.SUM, session, len(data[i]), i)).all(), i


def gradients(session):
    """All types in one group, odd sizes, two slots, and another order of readiness on each rank and in each step."""
    shuffled = random.Random(session.rank)
    specs = []
    for i, count in enumerate([1, 7, 1009, 3, 65537, 300_007, 2, 64, 1, 13]):
        dtype = list(TYPES)[i % len(TYPES)]
        specs.append(deft.Tensor(f"layer{i}", dtype, (count,), 9 - i))
    group = session.declare("model", specs, slots=2)
    for step in range(6):
        slot = step % 2
        session.stage(deft.BACKWARD, step)
        order = list(range(len(specs)))
        shuffled.shuffle(order)
        for i in order:
            count = specs[i].shape[0]
            view(group.data(i, slot), count, specs[i].dtype)[:] = to_wire(
                numbers(session.rank, count, step), specs[i].dtype
            )
            group.ready(i, 1, step, slot)
        session.stage(deft.FORWARD, step + 1)
        for i, spec in enumerate(specs):
            group.wait(i, 1, step)
            assert group.test(i, 1, step)
            got = from_wire(view(group.data(i, slot), spec.shape[0], spec.dtype), spec.dtype)
            assert (got == reduced(deft.SUM, session, spec.shape[0], step)).all(), (step, spec)


def two_groups(session):
    weight = [deft.Tensor("w", deft.FLOAT32, (1000,))]
    groups = [session.declare(f"g{op}", weight, op=op) for op in (deft.SUM, deft.MAX)]
    for step in range(3):
        for group in groups:
            view(group.data(0), 1000, deft.FLOAT32)[:] = numbers(session.rank, 1000, step)
            group.ready(0, 1, step)
        for group, op in zip(groups, (deft.SUM, deft.MAX), strict=True):
            group.wait(0, 1, step)
            assert (view(group.data(0), 1000, deft.FLOAT32) == reduced(op, session, 1000, step)).all()


def releases(session):
    """More groups than a job has at once, one after the other; the ranks release them at different times."""
    weight, ours = [deft.Tensor("w", deft.FLOAT32, (1000,))], []
    for number in range(1050):
        group = session.declare(f"g{number}", weight)
        view(group.data(0), 1000, deft.FLOAT32)[:] = numbers(session.rank, 1000, number)
        group.ready(0, 1, 0)
        group.wait(0, 1, 0)
        assert (view(group.data(0), 1000, deft.FLOAT32) == reduced(deft.SUM, session, 1000, number)).all()
        ours.append(group)
        if len(ours) > session.rank:
            for one in reversed(ours):
                one.release()
            ours.clear()
    for one in ours:
        one.release()
    group.release()  # a second time does nothing
    for late in (lambda: group.ready(0, 1, 1), lambda: group.data(0), lambda: group.wait(0, 1, 0), group.handle):
        try:
            late()
        except deft.DeftError as error:
            assert "was released" in str(error), error
        else:
            raise AssertionError("a group is used after its release")
    with open("/proc/self/maps") as maps:
        assert "deft-arena" not in maps.read()
    settled(0)


def arenas_that_stay(session):
    """Memory of arenas outlives its group and the session; what it holds does if the process has it for its own."""
    memory = {}
    for name in ("forgotten", "owned"):
        group = session.declare(name, [deft.Tensor("w", deft.FLOAT32, (1000,))])
        memory[name] = (ctypes.c_float * 1000).from_address(group.data(0))
        group.keep_mapped(memory[name])
        memory[name][:] = numbers(session.rank, 1000, 0).tolist()
        group.ready(0, 1, 0)
        group.wait(0, 1, 0)
        if name == "owned":
            group.own_arena()
        group.release()
    settled(0)
    session.close()
    for name, expected in (("forgotten", 0), ("owned", reduced(deft.SUM, session, 1000, 0))):
        address = ctypes.addressof(memory[name])
        values = np.frombuffer(memory.pop(name), np.float32, 1000)
        assert (values == expected).all() and is_mapped(address), name
        values[:] = 7  # no signal
        del values
        assert not is_mapped(address), name


def threads(session):
    """Gradients and collectives from several threads at a time."""
    group = session.declare("model", [deft.Tensor(f"t{i}", deft.FLOAT32, (501,)) for i in range(4)])
    failures = []

    def train(tensor):
        for step in range(20):
            view(group.data(tensor), 501, deft.FLOAT32)[:] = numbers(session.rank, 501, step)
            group.ready(tensor, 1, step)
            group.wait(tensor, 1, step)
            if not (view(group.data(tensor), 501, deft.FLOAT32) == reduced(deft.SUM, session, 501, step)).all():
                failures.append((tensor, step))

    def collect():
        for i in range(20):
            data = to_wire(numbers(session.rank, 99, i), deft.INT64)
            session.allreduce("metric", data.ctypes.data, 99, deft.INT64).finish(data.ctypes.data)
            if not (data == reduced(deft.SUM, session, 99, i)).all():
                failures.append(("metric", i))

    everyone = [threading.Thread(target=train, args=(i,)) for i in range(4)] + [threading.Thread(target=collect)]
    for thread in everyone:
        thread.start()
    for thread in everyone:
        thread.join()
    assert not failures, failures


def expect_error(kind, *words):
    class Expected:
        def __enter__(self):
            return self

        def __exit__(self, error_type, error, _):
            assert error_type is deft.DeftError, f"no error: {error!r}"
            assert error.kind == kind, (error.kind, str(error))
            for word in words:
                assert word in str(error), f"'{word}' is not in: {error}"
            return True

    return Expected()


MISMATCH, TIMEOUT, LOST, EXHAUSTED = 2, 3, 4, 5


def mismatched_collectives(session):
    """Each fails alone and names both; the session goes on."""
    rank, data = session.rank, np.ones(100, np.float64)
    with expect_error(MISMATCH, "rank 0", "rank 1"):
        session.allreduce("count", data.ctypes.data, 10 + rank, deft.FLOAT32).finish()
    with expect_error(MISMATCH, "float32", "float64"):
        session.allreduce("type", data.ctypes.data, 10, (deft.FLOAT32, deft.FLOAT64)[rank]).finish()
    with expect_error(MISMATCH, "rank 0", "rank 1"):
        session.allreduce("op", data.ctypes.data, 10, deft.FLOAT32, (deft.SUM, deft.MAX)[rank]).finish()
    with expect_error(MISMATCH, "rank 0", "rank 1"):
        session.broadcast("root", data.ctypes.data, 10, deft.FLOAT32, rank).finish()
    with expect_error(MISMATCH, "rank 0", "rank 1"):
        if rank:
            session.broadcast("kind", data.ctypes.data, 10, deft.FLOAT32).finish()
        else:
            session.allreduce("kind", data.ctypes.data, 10, deft.FLOAT32).finish()
    allreduce(session)


def mismatched_declaration(session):
    with expect_error(MISMATCH, "w", "[3]", "[4]"):
        session.declare("model", [deft.Tensor("w", deft.FLOAT32, (3 + session.rank,))])


def full_memory(session):
    """More than the daemon may give fails alone."""
    data = np.ones(16 << 20, np.float32)
    with expect_error(EXHAUSTED, "memory"):
        session.allreduce("large", data.ctypes.data, data.size, deft.FLOAT32).finish()
    allgather(session)


def last_one_dies(session):
    """Signs that it runs; then everybody is in mid-collective when the test kills the last rank."""
    group = session.declare("model", [deft.Tensor("w", deft.FLOAT32, (100,))])
    session.barrier("b")
    print("running", flush=True)
    if session.rank == session.size - 1:
        signal.pause()  # until the kill
    began = time.monotonic()
    try:
        group.ready(0, 1, 0)  # a kill may be known already
        group.wait(0, 1, 0)
    except deft.DeftError as error:
        assert error.kind == LOST, error
        print(f"{time.monotonic() - began:.1f} {error}")
        with expect_error(LOST):
            session.barrier("c")
        return
    raise AssertionError("the wait ended well")


def link_bytes(session):
    """What went over each link of this node."""
    for link in daemon_status()["jobs"][0]["links"]:
        print(link["name"], link["bytes"])
    session.barrier("asked")


def daemon_status():
    """What `deft status --json` asks for."""
    return deft._native.daemon_status()


def opens_again(session):
    session.close()
    fresh = deft.open()
    handle, fresh._handle = fresh._handle, None  # `session` closes it
    session.__init__(handle)
    allreduce(session)


def leaves_nothing(session):
    """Opening, working and closing leaves no thread and no descriptor behind."""

    seen = []
    for _ in range(3):
        allreduce(session)
        opens_again(session)
        seen.append(held())
    assert len(set(seen)) == 1, seen


def trains_until_it_fails(session):
    """Gradients without a pause, so that a loss meets a running operation; ends well when the loss is told."""
    trains_until(session, LOST)


def trains_until_nothing_moves(session):
    trains_until(session, TIMEOUT)


def trains_until(session, kind):
    count = 2_000_000
    group = session.declare("model", [deft.Tensor(f"t{i}", deft.FLOAT32, (count,)) for i in range(2)])
    session.barrier("b")
    try:
        for step in range(100_000):
            for tensor in range(2):
                view(group.data(tensor), count, deft.FLOAT32)[:] = 1
                group.ready(tensor, 1, step)
            if step == 2:
                print("running", flush=True)
            group.wait(0, 2, step)
    except deft.DeftError as error:
        assert error.kind == kind, error
        print(error)
        session.close()
        return
    raise AssertionError("nothing was lost")


def stops_itself(session):
    """The last rank stops in mid-training, and somebody continues it: all results are right."""
    group = session.declare("model", [deft.Tensor("w", deft.FLOAT32, (1000,))])
    for step in range(6):
        view(group.data(0), 1000, deft.FLOAT32)[:] = session.rank + step
        if step == 3 and session.rank == session.size - 1:
            os.kill(os.getpid(), signal.SIGSTOP)
        group.ready(0, 1, step)
        group.wait(0, 1, step)
        assert (view(group.data(0), 1000, deft.FLOAT32) == sum(r + step for r in range(session.size))).all(), step


def callbacks(session):
    """Gradients and a collective that call back, through ctypes as a framework's binding would."""
    lib = deft._native.lib
    kind = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)
    lib.deft_when_reduced.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_uint64, kind]
    lib.deft_when_reduced.argtypes += [ctypes.c_void_p, ctypes.c_void_p]
    group = session.declare("model", [deft.Tensor(f"t{i}", deft.FLOAT32, (100,)) for i in range(4)])
    called, all_called = [], threading.Event()

    @kind
    def on_done(step, error):
        called.append((step or 0, ctypes.c_int.from_address(error).value))
        if len(called) == 20:
            all_called.set()

    for step in range(5):
        for tensor in range(4):
            view(group.data(tensor), 100, deft.FLOAT32)[:] = session.rank
            group.ready(tensor, 1, step)
            assert lib.deft_when_reduced(group.handle(), tensor, 1, step, on_done, step, None) == 0
        group.wait(0, 4, step)
    assert all_called.wait(20), called
    assert sorted(called) == [(step, 0) for step in range(5) for _ in range(4)], called


def store(session):
    """Keys of the job's store, before and after they are set; an answer that does not come is waited for no longer."""
    late = [session.ask(f"late.{rank}") for rank in range(session.size)]
    began = time.monotonic()
    assert [late[-1].answer(0.01) for _ in range(20)] == [None] * 20
    assert time.monotonic() - began < 60, "20 waits of 10 ms"
    session.barrier()
    session.set(f"late.{session.rank}", bytes([session.rank]) * 4096)
    assert [question.answer(20) for question in late] == [bytes([rank]) * 4096 for rank in range(session.size)]
    assert late[0].answer() == bytes(4096), "an answer stays"
    session.barrier()
    session.set("late.0", b"")
    assert session.ask("late.0").answer(0.05) is None, "an empty value takes the key out"
    assert session.ask(f"late.{session.size - 1}").answer(20) == bytes([session.size - 1]) * 4096
    for wrong in (("set", "k", bytes(4097)), ("set", "k" * 2000, b""), ("ask", "k" * 2000)):
        try:
            getattr(session, wrong[0])(*wrong[1:])
            raise AssertionError(wrong[0])
        except deft.DeftError as error:
            assert "store" in str(error), error
    assert session.ask(f"late.{session.size - 1}").answer(20) is not None, "the session goes on"
    many = [session.ask(f"late.{session.size - 1}") for _ in range(1000)]
    assert all(question.answer(20) for question in many), "more answers than the socket's queue holds"
    assert "listen" in deft._native.daemon_status()


def not_on_device(session):
    assert not session.on_device()


def device_gradients(session):
    """Gradients in (fake) device memory: the shared arena is never looked at, and nothing is copied."""
    assert session.on_device()
    cuda = ctypes.CDLL("libcudart.so.13")
    cuda.fake_cuda_copies.restype = ctypes.c_ulong
    counts = [7, 1009, 65537, 300_007]
    group = session.declare("model", [deft.Tensor(f"t{i}", deft.FLOAT32, (n,)) for i, n in enumerate(counts)], slots=2)
    memory = ctypes.c_void_p()
    assert cuda.cudaMalloc(ctypes.byref(memory), ctypes.c_size_t(group.arena_bytes())) == 0
    ctypes.memset(memory, 0, group.arena_bytes())
    group.use_device_arena(memory.value, memory)
    session.barrier("b")
    copies = cuda.fake_cuda_copies()
    for step in range(4):
        for i, count in enumerate(counts):
            there = memory.value + group.data(i, step % 2) - group.data(0)
            view(there, count, deft.FLOAT32)[:] = numbers(session.rank, count, step)
            group.ready(i, 1, step, step % 2)
        group.wait(0, len(counts), step)
        for i, count in enumerate(counts):
            there = memory.value + group.data(i, step % 2) - group.data(0)
            assert (view(there, count, deft.FLOAT32) == reduced(deft.SUM, session, count, step)).all(), (step, i)
            assert not view(group.data(i, step % 2), count, deft.FLOAT32).any()
    assert cuda.fake_cuda_copies() == copies


def starve():
    """The last rank has descriptors left to attach, and none for a link of its own."""
    if os.environ["RANK"] == "1":
        used = max(int(name) for name in os.listdir("/proc/self/fd"))
        resource.setrlimit(resource.RLIMIT_NOFILE, (used + 4, used + 4))


def closes_while_forked(session):
    """A data loader (a fork) lives and dies without disturbing."""
    child = os.fork()
    if child == 0:
        try:
            session.barrier("child")
        except deft.DeftError:
            session.close()
            os._exit(0)
        os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    allreduce(session)


def main():
    await_all_workers()
    scenarios = sys.argv[1].split(",")
    if scenarios[0] == "starve":
        starve()
        scenarios = scenarios[1:]
    session = deft.open()
    for scenario in scenarios:
        globals()[scenario](session)
    session.close()


main()

"""What happens at the same time: gradients travel during backward, and forward begins before all sums are there."""

import collections
import threading

WAIT_SECONDS = 60
STEPS = 3


class Events:
    """One event a step, by step."""

    def __init__(self):
        self._events = collections.defaultdict(threading.Event)

    def set(self, step):
        self._events[step].set()

    def wait(self, step):
        return self._events[step].wait(WAIT_SECONDS)


def register_gate(forward_began, handed_over, seen):
    """The operation `gate` does nothing. Its backward waits until the gradient of the layer above is handed over."""
    import mxnet as mx

    class Gate(mx.operator.CustomOp):
        steps = {"forward": 0, "backward": 0}

        def forward(self, is_train, req, in_data, out_data, aux):
            forward_began.set(self.steps["forward"])
            self.steps["forward"] += 1
            self.assign(out_data[0], req[0], in_data[0])

        def backward(self, req, out_grad, in_data, out_data, in_grad, aux):
            seen.append(handed_over.wait(self.steps["backward"]))
            self.steps["backward"] += 1
            self.assign(in_grad[0], req[0], out_grad[0])

    @mx.operator.register("gate")
    class GateProperties(mx.operator.CustomOpProp):
        def create_operator(self, ctx, shapes, dtypes):
            return Gate()

    return GateProperties


def overlap():
    import deft
    import deft.mxnet as hvd
    import mxnet as mx

    forward_began, handed_over, seen, held = Events(), Events(), [], []
    register_gate(forward_began, handed_over, seen)
    layers = [mx.gluon.nn.Dense(4, in_units=4, use_bias=False) for _ in range(2)]
    for layer in layers:
        layer.initialize()
    trainer = hvd.DistributedTrainer([layer.weight for layer in layers], "sgd")
    ready, when_reduced = deft.Group.ready, deft.Group.when_reduced

    def note_ready(group, first, count, step, slot=0):
        ready(group, first, count, step, slot)
        if first == 0:  # the upper layer, whose gradient comes first
            handed_over.set(step)

    def hold_the_upper_layer(group, first, count, step, callback):
        def reduced(error):
            if first == 0 and step + 1 < STEPS:
                held.append(forward_began.wait(step + 1))
            callback(error)

        # libdeft has one thread for callbacks, so the one that waits gets a thread of its own.
        when_reduced(group, first, count, step, lambda error: threading.Thread(target=reduced, args=(error,)).start())

    deft.Group.ready, deft.Group.when_reduced = note_ready, hold_the_upper_layer
    try:
        for _ in range(STEPS):
            with mx.autograd.record():
                below = mx.nd.Custom(layers[0](mx.nd.ones((1, 4))), op_type="gate")
                loss = layers[1](below).sum()
            loss.backward()
            trainer.step(1)
        mx.nd.waitall()
    finally:
        deft.Group.ready, deft.Group.when_reduced = ready, when_reduced
    assert seen == [True] * STEPS, "backward ended before its first gradient was on its way"
    assert held == [True] * (STEPS - 1), "the forward of the next step waited for the last sum"
    return True


def test_gradients_travel_during_backward_and_forward_begins_before_the_last_sum(start):
    assert all(start(policy="bytescheduler").run(overlap))

"""join() for ranks that have no more data, and zeros for the gradients of their optimizers."""

from deft import joining, world
from deft.gradient_round import Phase
from deft.process_sets import global_process_set

from .delayed_step import DelayedStep
from .synchronous_step import SynchronousStep


def join(device=-1):
    """Says that this rank has no more data, and waits until all ranks have said so. Gives the rank that was the last.

    Until then this rank counts as zero in the others' allreduces, and averages are still divided by the number of all
    ranks. The others' updates are not made here, so broadcast the parameters of the last rank afterwards. `device` is
    Horovod's.
    """
    session = global_process_set.session()
    mine = [steps for steps, used in world.dependents() if used is session]
    if any(isinstance(steps, DelayedStep) for steps in mine):
        raise ValueError(
            "join() does not work with updates that may be delayed: choose another DEFT_POLICY, or set "
            "DEFT_MAX_STALENESS_STEPS=0"
        )
    gradients = [SynchronousZeros(steps) for steps in mine if isinstance(steps, SynchronousStep)]
    return joining.join(session, gradients)


class SynchronousZeros:
    """The gradients of one optimizer while its rank has joined: as deft.joining.ResidualGradients says."""

    def __init__(self, steps):
        self._steps = steps
        self._buffer = steps.buffer
        self.name = steps.buffer.name

    def join_begins(self):
        self._steps.flush()
        buffer = self._buffer
        if buffer.round.phase is Phase.OPEN:  # a backward has failed
            buffer.versions.hold(())
            if buffer.arena is None and buffer.process_set.session().joining.round_dropped(self.name):
                buffer.used()
            else:
                buffer.complete(expose=False)
        elif buffer.round.phase is not Phase.HANDED:
            self._steps.drop()

    def join_ends(self):
        buffer = self._buffer
        if buffer.round.phase is Phase.HANDED:
            buffer.release_grads()
            buffer.arena.wait(buffer.schedule.step)
            buffer.writer.detach()
            buffer.schedule.advance()
            buffer.used()

    def rounds(self):
        return self._buffer.schedule.step

    def send_residuals(self, step):
        if self.rounds() < step:
            self.join_ends()
        self._buffer.arena.group.send_residuals(step)

    def give_zeros(self, number):
        if self._buffer.round.phase is Phase.HANDED:
            if self._buffer.schedule.step == number:
                return
            self.join_ends()
        self._buffer.release_grads()
        self._buffer.complete(expose=False)

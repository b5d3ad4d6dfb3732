"""How a gradient is written to the arena; two ways with the same methods.

SharingWriter: p.grad becomes a part of the arena and later holds the average. For updates that are made with the
step's own gradients.

MergingWriter: p.grad stays the step's own gradient, and is copied or added to the slot of its generation. For updates
that merge steps or come later.
"""

import weakref

from deft.gradient_round import HANDED

import torch

from .hooks import current_task


class SharingWriter:
    """Writes to the only slot."""

    def __init__(self, scaling, schedule):
        self.scaling = scaling  # of this backward's gradients
        self.terms = scaling.terms
        self._plain = scaling  # of a loss that is not scaled
        self.loss_scale = 1.0
        self._schedule = schedule
        self._arena = None
        self._gradients = ()
        self._takers = []  # gradients that need work after the wait
        self._withheld = set()  # had none when the generation was completed, and p.grad shows none until the wait
        self._frozen = set()  # in the update that was left to the next forward

    def attach(self, arena, gradients):
        self._arena, self._gradients = arena, gradients
        self._follow_scale()

    def _follow_scale(self):
        self._takers = [g for g in self._gradients if self.scaling.after != 1.0 or not g.direct]
        for gradient in self._gradients:
            gradient.loss_scale = self.loss_scale if gradient.is_narrowed else 1.0

    def unscale(self, loss_scale):
        """The loss of the backward that begins was multiplied by `loss_scale`; 1: it was not.

        What encodings leave out is kept for later steps, whose scale may be another. So gradients travel without it,
        but for those that travel as float16, which no codec encodes.
        """
        self.loss_scale, self.scaling = loss_scale, self._plain.unscaled(loss_scale)
        self._follow_scale()

    def hook(self, buffer, gradient):
        """Runs once a parameter and step: every name in it is local."""
        place, view, plain = gradient.place, gradient.view, gradient.direct
        marks, schedule, ready, multiply = buffer.round.marks, self._schedule, self._arena.ready, torch.mul
        buffer_of, gradient_of = weakref.ref(buffer), weakref.ref(gradient)

        def hand_over(param):
            buffer = buffer_of()
            if buffer is None:
                return
            if marks[place]:
                buffer.check_again(gradient_of())
            if buffer.task != current_task():
                buffer.begin_backward()
            grad, scale = param.grad, buffer.writer.scaling.before
            if plain and grad is not view and not grad.is_sparse and not grad.requires_grad:
                multiply(grad, scale, out=view)
                param.grad = view
            else:
                gradient_of().put(scale)
            marks[place] = HANDED
            ready(place, 1, schedule.step)

        return hand_over

    def hand_in(self, gradient, expose, averaged):
        """Hands over a gradient that no hook has handed over. `averaged`: p.grad holds an average of this step."""
        if not expose and gradient.param.grad is None:
            self._withheld.add(gradient)
        gradient.put(self.scaling.again if averaged else self.scaling.before, expose=expose)
        self._arena.ready(gradient.place, 1, self._schedule.step)

    def withhold(self, gradient):
        """It was handed in as zeros, and p.grad shows that: a further backward must not add to what is under way."""
        if gradient.param.grad is gradient.view:
            gradient.param.grad = None
        if gradient.param.grad is None:
            self._withheld.add(gradient)

    def may_come_again(self, gradient, versions):
        """Whether a gradient that was handed over before may begin anew: p.grad was cleared, or set to zero.

        What was set to zero has been added to since, so only the change is seen. Of other changes this makes what one
        process makes of them, if an average of averages is one; with sums it would not.
        """
        averages = self.scaling.again == self.scaling.before
        return versions.was_replaced(gradient) or (averages and versions.was_changed_before(gradient))

    def take_averages(self, dropped=()):
        """Lets every p.grad be the average, except for the gradients `dropped`. The arena holds the sums."""
        for gradient in self._takers:
            param = gradient.param
            withheld = gradient in self._withheld or gradient in dropped
            if not withheld and (param.requires_grad or param.grad is not None):
                gradient.take(self.scaling.after)
        for gradient in () if dropped else self._withheld:
            gradient.take_withheld(self.scaling.after)
        self._withheld.clear()

    def detach(self):
        """The averages are taken later, from the arena."""
        self._withheld.clear()
        self._frozen = {g for g in self._gradients if not g.param.requires_grad and g.param.grad is None}

    def moved(self, gradients, _due):
        """Those of the gradients whose parameters the update moves: not those that were frozen at step().

        They may be frozen since, and are all the same when the update is made, as in the training of a GAN.
        """
        return [g for g in gradients if g not in self._frozen] if self._frozen else gradients


class MergingWriter:
    """Writes to the slot of the generation that merges the step."""

    def __init__(self, scaling, schedule):
        self.scaling = scaling
        self.terms = scaling.terms
        self.factor = scaling.before  # of the gradients of this backward
        self._schedule = schedule
        self._arena = None
        self._narrowed = None  # the name of a gradient that travels as float16; None: none does
        self._frozen = set()  # (place, number): parameters that were frozen in all steps of a generation

    def attach(self, arena, gradients):
        self._arena = arena
        self._narrowed = next((gradient.name for gradient in gradients if gradient.is_narrowed), None)
        self._refuse_narrowed()

    def unscale(self, loss_scale):
        """The loss of the backward that begins was multiplied by `loss_scale`; 1: it was not.

        The steps that a generation merges may have different scales, so gradients travel without it.
        """
        self.factor = self.scaling.before / loss_scale
        self._refuse_narrowed()

    def _refuse_narrowed(self):
        if self._narrowed is not None and self.factor != self.scaling.before:
            raise RuntimeError(
                f"the gradient of {self._narrowed} travels as float16 (Compression.fp16). With delayed updates it "
                "travels without the scale of a GradScaler, so its small values would become zero: use "
                'Compression.codec("fp16"), which sends later what it leaves out, or a synchronous DEFT_POLICY'
            )

    def hook(self, buffer, gradient):
        place, marks, hand_in = gradient.place, buffer.round.marks, self.hand_in
        buffer_of, gradient_of = weakref.ref(buffer), weakref.ref(gradient)

        def hand_over(_param):
            buffer = buffer_of()
            if buffer is None:
                return
            if marks[place]:
                buffer.check_again(gradient_of())
            if buffer.task != current_task():
                buffer.begin_backward()
            hand_in(gradient_of())
            marks[place] = HANDED

        return hand_over

    def hand_in(self, gradient, _expose=False, _averaged=False):
        """Adds a gradient to its generation, and hands that over with its last step."""
        schedule = self._schedule
        now, step = schedule.now[gradient.place], schedule.step
        view, grad = gradient.views[now.slot], gradient.param.grad
        first = now.first_step == step
        moves = grad is not None or gradient.param.requires_grad
        if first and not moves:
            self._frozen.add((gradient.place, now.number))
        elif moves and self._frozen:
            self._frozen.discard((gradient.place, now.number))
        if grad is None:
            if first:
                gradient.clear(view)
        elif first:
            gradient.copy(grad, self.factor, view)
        else:
            gradient.add(grad, self.factor, view)
        if now.last_step == step:
            self._arena.ready(gradient.place, 1, now.number, now.slot)

    def may_come_again(self, _gradient, _versions):
        """A gradient that is merged with other steps cannot begin anew."""
        return False

    def moved(self, gradients, due):
        """Those of the gradients whose parameters the update `due` moves; asked once a gradient and generation.

        What counts is whether a parameter was frozen when its gradients were handed in.
        """
        if not self._frozen:
            return gradients
        keys = {(gradient.place, due.of(gradient.place).number): gradient for gradient in gradients}
        moved = [gradient for key, gradient in keys.items() if key not in self._frozen]
        self._frozen.difference_update(keys)
        return moved

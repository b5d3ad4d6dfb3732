"""ByteScheduler's Bayesian optimisation: a Gaussian process and expected improvement, by Optuna.

    search = optimise(compare, start, Space(), trials=15)     # ModuleNotFoundError without optuna, scipy and torch

Optuna hears how much longer a step takes than with the settings at the beginning. Each setting is compared with the
best one so far, beside it (duel.py), so its figures do not drift.
"""

from __future__ import annotations

import math
import os

from deft_tuner.descent import Compare, Contest, Search, Tell
from deft_tuner.settings import SIZES, Settings, Space

SEED = 17  # the same trials for the same job
FIRST = 1 / 3  # of the trials are drawn at random, before the process knows enough


def make_study(trials: int):
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # the job needs the cores
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    sampler = optuna.samplers.GPSampler(seed=SEED, n_startup_trials=max(2, round(FIRST * trials)))
    return optuna.create_study(sampler=sampler, direction="minimize")


def ask(study, space: Space, policy: str):
    """The next trial of the study, and its settings."""
    trial = study.ask()
    sizes = {}
    for name in SIZES:
        least, most = space.limits(name)
        sizes[name] = space.rounded(name, trial.suggest_float(name, least, most, log=True))
    return trial, Settings(policy, **sizes)


def sizes_of(settings: Settings, space: Space) -> dict[str, float]:
    return {name: float(space.rounded(name, getattr(settings, name))) for name in SIZES}


def optimise(
    compare: Compare,
    start: Settings,
    space: Space,
    trials: int,
    least_gain: float = 0.01,
    tell: Tell = lambda trial: None,
    predicted: Settings | None = None,
) -> Search:
    """`predicted`: what replay says is best, which is tried first."""
    contest = Contest(compare, start, trials, least_gain, tell)
    study = make_study(trials)
    scores = {start: 0.0}  # the logarithm of a step's time over that of the start
    for first in (start, predicted):
        if first is not None:
            study.enqueue_trial(sizes_of(first, space), skip_if_exists=True)
    while not contest.is_over:
        trial, settings = ask(study, space, start.policy)
        if settings not in scores:
            best = contest.search.best
            duel = contest.challenge(settings).duel
            scores[settings] = scores[best] + math.log(1 - duel.gain)
        elif len(study.trials) > 4 * trials + 8:
            contest.search.why_it_ended = "it proposes what it has tried"
            return contest.search
        study.tell(trial, scores[settings])
    contest.search.why_it_ended = "all trials were made"
    return contest.search

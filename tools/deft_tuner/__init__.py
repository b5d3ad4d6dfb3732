"""deft tune: looks for a part size and a credit with which a running job is faster.

    settings.py   the tuned options, and their limits
    measure.py    step times, and their noise
    duel.py       compares two settings side by side, so that drift does not decide
    descent.py    noise-aware coordinate descent
    bayesian.py   Bayesian optimisation, by Optuna
    job.py        the running job, through `deft status` and `deft set`
    command.py    the command line

Only job.py and command.py do I/O. The others see a function that runs a setting for some steps, so tests give them
functions whose best setting is known.
"""

"""torch's averages of weights (AveragedModel, for EMA and SWA) read parameters: updates that wait are made before."""

import functools

from deft.world import flush_all

from torch.optim.swa_utils import AveragedModel


def let_averages_see_updates():
    """AveragedModel.update_parameters() begins as optimizer.flush() does. A second time does nothing."""
    update = AveragedModel.update_parameters
    if not hasattr(update, "deft_flushes"):
        AveragedModel.update_parameters = _flushing(update)


def _flushing(update):
    @functools.wraps(update)
    def updated(averaged, model):
        flush_all()
        return update(averaged, model)

    updated.deft_flushes = True
    return updated

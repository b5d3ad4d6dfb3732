"""What goes to another process, or is copied, stays what it is."""

import copy
import pickle

import pytest
from deft import DeftError, HorovodInternalError
from deft._native import EINVALID, ELOST, InvalidCallError
from deft.process_sets import global_process_set


@pytest.mark.parametrize("copied", [lambda one: pickle.loads(pickle.dumps(one)), copy.copy, copy.deepcopy])
def test_errors(copied):
    lost, mistake = copied(DeftError(ELOST, "rank 1 died")), copied(InvalidCallError("no such rank"))
    assert (type(lost), lost.kind, str(lost)) == (HorovodInternalError, ELOST, "rank 1 died")
    assert (type(mistake), mistake.kind, str(mistake)) == (InvalidCallError, EINVALID, "no such rank")
    assert copied(global_process_set) is global_process_set

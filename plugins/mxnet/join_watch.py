"""Has operations of MXNet's engine looked after, for join(): no call of Python waits for them.

    began(session)      # an operation is under way
    ended(session)

If operations of a session last, a thread asks for them whether other ranks have joined (deft.joining).
"""

import collections
import threading
import time

from deft import DeftError

_LOOK_S = 0.02

_changed = threading.Condition()
_under_way = collections.Counter()  # operations, by session
_threads = []


def began(session):
    if session.size == 1:
        return
    with _changed:
        _under_way[session] += 1
        if not _threads:
            _threads.append(threading.Thread(target=_look, name="deft_join_watch", daemon=True))
            _threads[0].start()
        _changed.notify()


def ended(session):
    with _changed:
        _under_way[session] -= 1
        if _under_way[session] <= 0:
            del _under_way[session]


def _look():
    while True:
        with _changed:
            _changed.wait_for(lambda: _under_way)
        time.sleep(_LOOK_S)
        with _changed:
            lasting = list(_under_way)
        for session in lasting:
            try:
                session.joining.look()
            except DeftError:  # the session is lost or closed
                with _changed:
                    _under_way.pop(session, None)

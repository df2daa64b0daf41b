"""The start script of child processes: a guard process, and below it the process that runs jobs.

The guard is a bare interpreter that only waits. When the runner or the worker ends, or when the worker asks
for it, the guard kills every process that is left below it, even in other process groups: on Linux, orphans
become its own children. The runner takes over the parent's ``sys.path`` and serves jobs.

This file runs before windlass can be imported, so it may only use the standard library.
"""

import json
import os
import resource
import signal
import socket
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from windlass.sandbox import _tree
elif __name__ == "__main__":
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
    import _tree

#: Signals from the worker to the guard: stop the handler so that it can clean up; kill everything.
STOP, KILL = signal.SIGUSR1, signal.SIGTERM
_WAITS_FOR = (STOP, KILL, signal.SIGCHLD)


def _receive(pipe: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        part = pipe.recv(count - len(data))
        if not part:
            sys.exit(0)  # the parent is gone
        data += part
    return data


def split(worker: int) -> None:
    """Fork. Returns in the process that runs jobs; the other process stays here as its guard."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _WAITS_FOR)
    _tree.adopt_orphans()
    _tree.die_with(worker, KILL)
    guard = os.getpid()
    runner = os.fork()
    if runner == 0:
        os.setpgid(0, 0)
        _tree.adopt_orphans()
        _tree.die_with(guard, signal.SIGKILL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _WAITS_FOR)
        return
    os.close(int(sys.argv[1]))  # only the runner uses the pipe
    _leave_as(_watch(runner))


def _watch(runner: int) -> int:
    """Wait until the runner has ended and nothing is left below. Returns the exit code of the runner."""
    while os.waitid(os.P_PID, runner, os.WEXITED | os.WNOWAIT | os.WNOHANG) is None:
        number = signal.sigwait(_WAITS_FOR)
        if number == STOP:
            _signal_group(runner, signal.SIGTERM)
        elif number == KILL:
            break
    _signal_group(runner, signal.SIGKILL)  # before it is reaped, so that its group id is not reused
    _, status = os.waitpid(runner, 0)
    _tree.sweep()
    return os.waitstatus_to_exitcode(status)


def _signal_group(runner: int, number: int) -> None:
    for send in (os.killpg, os.kill):  # it may not be a group leader yet
        try:
            send(runner, number)
        except (ProcessLookupError, PermissionError):
            continue
        return


def _leave_as(code: int) -> None:
    """Exit with the runner's code, or by the signal that ended it."""
    if code < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if -code not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(-code, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [-code])
        os.kill(os.getpid(), -code)
    os._exit(code if code >= 0 else 1)


if __name__ == "__main__":
    split(int(sys.argv[2]))
    pipe = socket.socket(fileno=int(sys.argv[1]))
    length = int.from_bytes(_receive(pipe, 4), "big")
    sys.path[:] = json.loads(_receive(pipe, length))
    from windlass.sandbox.child import main

    main(pipe)

"""How the tests wait: for a thing itself, never for a number of seconds.

There is one limit, many times what the slowest thing here needs on a slow and busy machine. Only what hangs reaches it,
and it is then told what that was."""
import contextlib
import itertools
import os
import signal
import subprocess
import time

LIMIT = 600   # seconds


def until(true, what, every=.05):
    "The first value of `true()` that is true; `what` is said if there is none"
    end = time.monotonic() + LIMIT
    while not (value := true()):
        assert time.monotonic() < end, f'waited {LIMIT} s in vain until {what}'
        time.sleep(every)
    return value


def tries(times, seconds=0):
    "0, 1, 2, ...: so many numbers, and more of them while the seconds last; a long trial, not a limit"
    end = time.monotonic() + seconds
    return itertools.takewhile(lambda i: i < times or time.monotonic() < end, itertools.count())


def unmoved(value, beats, what, n=5):
    "Assert that `value()` is the same while `beats()` changes `n` times"
    held = value()
    for _ in range(n):
        now = beats()
        until(lambda: beats() != now, f'{what} beats')
        assert value() == held, f'{what} moved from {held} to {value()}'


def hear():
    "Listen to the signals that a job in the background may have been told to ignore"
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for s in (signal.SIGTERM, signal.SIGHUP): signal.signal(s, signal.SIG_DFL)


@contextlib.contextmanager
def started(*command, **kw):
    "A process that hears Ctrl-C, even where ours does not; when the block ends it is killed with all it started"
    p = subprocess.Popen([str(o) for o in command], text=True, start_new_session=True,
                         preexec_fn=hear, **kw)
    try: yield p
    finally:
        with contextlib.suppress(ProcessLookupError): os.killpg(p.pid, signal.SIGKILL)
        p.wait(LIMIT)
        for pipe in (p.stdout, p.stderr): pipe and pipe.close()


@contextlib.contextmanager
def forked(do, *args):
    "A process like that of `started` that calls `do`, born with torch in it: with the imports of a new one it would be seconds"
    from conftest import children
    p = children.Process(target=_alone, args=(do, args))
    p.start()
    try: yield p
    finally:
        with contextlib.suppress(ProcessLookupError): os.killpg(p.pid, signal.SIGKILL)
        p.kill()
        p.join(LIMIT)


def _alone(do, args):
    "Call `do` in a process that heads a group of its own, hears Ctrl-C and says nothing"
    os.setsid()
    hear()
    for fd in (1, 2): os.dup2(os.open(os.devnull, os.O_WRONLY), fd)
    do(*args)


def ended(p, what):
    "What a process wrote to its output and its error output, once it has ended"
    try: return p.communicate(timeout=LIMIT)
    except subprocess.TimeoutExpired: raise AssertionError(f'waited {LIMIT} s in vain until {what} ended') from None

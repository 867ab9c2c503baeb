"""Run a command in fresh surroundings: `python dev/fresh.py COMMAND ...`

Neither the stored runs nor the settings of whoever runs the tests may play a part, so the store and the settings
folders of IPython and Jupyter are temporary ones. One thread per process, because small tensors on several threads are
many times slower; THREADS= (empty) leaves that to torch. Signals are as in a terminal, also where the caller ignores
them (`nohup make test &`): tests press Ctrl-C.

A slow machine is given all the time it needs. The command and all it started are stopped on Ctrl-C, and when nothing
has been printed, begun or ended for HANG seconds: whatever it runs appends to the file $GROK_NB_PROGRESS what it begins
and ends, so that what hung can be named."""
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
HANG = 1800   # no notebook and no test comes near, even on a machine that is ten times as slow
# A busy machine is slow to answer: no worker of Dask's is given up for that
DASK = {f'DASK_DISTRIBUTED__{k}': v for k, v in dict(COMM__TIMEOUTS__CONNECT='600 s', COMM__TIMEOUTS__TCP='600 s', SCHEDULER__WORKER_TTL='None').items()}


def stop(proc: subprocess.Popen):
    "End `proc` and everything it started: first asking, then not"
    for sig, wait in ((signal.SIGTERM, 10), (signal.SIGKILL, None)):
        try:
            os.killpg(proc.pid, sig)
            proc.wait(wait)
        except ProcessLookupError: return
        except subprocess.TimeoutExpired: continue


def surroundings(tmp: Path, **more) -> dict:
    "The environment of a test, with its folders below `tmp`"
    own = {'GROK_NB_STORE': 'store', 'IPYTHONDIR': 'ipython', 'JUPYTER_CONFIG_DIR': 'jupyter', 'GROK_NB_PROGRESS': 'progress'}
    env = os.environ | {k: str(tmp/v) for k, v in own.items()} | dict(GROK_NB_SCALE='smoke') | more
    env |= DASK
    env['MPLCONFIGDIR'] = str(ROOT/'.venv/matplotlib')      # nobody's settings, and its list of fonts is made once
    env['PATH'] = f'{Path(sys.executable).parent}{os.pathsep}{env.get("PATH", os.defpath)}'
    env.pop('OMP_NUM_THREADS', None)
    if threads := os.environ.get('THREADS', '1'): env['OMP_NUM_THREADS'] = threads
    return env


def usual_signals():
    "What a shell in a terminal starts a program with; a background job inherits that they are ignored"
    for s in (signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGHUP): signal.signal(s, signal.SIG_DFL)


def progress(path: Path) -> tuple:
    "What has begun and not ended, and what ended as (name, seconds, passed): CPU seconds where they are told"
    begun, ended = {}, []
    for line in path.read_text(errors='replace').splitlines() if path.exists() else ():
        what, when, name, *cost = line.split('\t')
        if what == 'begin': begun[name] = float(when)
        else:
            wall = float(when) - begun.pop(name, float(when))
            ended.append((name, float(cost[0]) if cost else wall, what == 'passed'))
    return list(begun), ended


def watch(proc: subprocess.Popen, path: Path, said: list, hang: float, clock):
    "Wait for `proc`; its exit code, or None if nothing has moved for too long"
    size, since = -1, clock()
    while True:
        try: return proc.wait(.5)
        except subprocess.TimeoutExpired: pass
        now = (path.stat().st_size if path.exists() else 0) + said[0]
        if now != size: size, since = now, clock()
        elif clock() - since > hang: return None


def run(cmd: list, log=None, hang: float = HANG, clock=time.monotonic, **more) -> tuple:
    "Exit code of `cmd` (124 if it hung, 130 after Ctrl-C), what was running at the end, and what ended; its words go to `log` too"
    with tempfile.TemporaryDirectory(prefix='grok_nb-', ignore_cleanup_errors=True) as tmp:
        env, said = surroundings(Path(tmp), **more), [0]
        path = Path(env['GROK_NB_PROGRESS'])
        proc = subprocess.Popen(cmd, env=env, cwd=ROOT, start_new_session=True, preexec_fn=usual_signals, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)

        def pass_on():
            for part in iter(lambda: proc.stdout.read1(65536), b''):
                said[0] += len(part)
                for f in (sys.stdout.buffer, log):
                    if f: f.write(part); f.flush()
        reader = threading.Thread(target=pass_on, daemon=True)
        reader.start()
        try: code = watch(proc, path, said, hang, clock)
        except KeyboardInterrupt: code = 130
        finally: stop(proc)
        reader.join(10)
        running, ended = progress(path)
        if code is None: print(f'stopped: nothing has moved for {hang/60:g} minutes; running: {", ".join(running) or Path(cmd[0]).name}')
        return 124 if code is None else code, running, ended


if __name__ == '__main__':
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    sys.exit(run(sys.argv[1:])[0])

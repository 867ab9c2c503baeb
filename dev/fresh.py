"""Run a command in fresh surroundings: `python dev/fresh.py SECONDS COMMAND ...`

Neither the stored runs nor the settings of whoever runs the tests may play a part, so the store and the settings
folders of matplotlib, IPython and Jupyter are temporary ones. One thread per process, because small tensors on
several threads are many times slower. The command and all it started are stopped after SECONDS, or on Ctrl-C."""
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path


def stop(proc: subprocess.Popen):
    "End `proc` and everything it started: first asking, then not"
    for sig, wait in ((signal.SIGTERM, 10), (signal.SIGKILL, None)):
        try:
            os.killpg(proc.pid, sig)
            proc.wait(wait)
        except ProcessLookupError: return
        except subprocess.TimeoutExpired: continue


def main(seconds: float, cmd: list) -> int:
    "Exit code of `cmd`, 124 if it took longer than `seconds`"
    with tempfile.TemporaryDirectory(prefix='grok_nb-', ignore_cleanup_errors=True) as tmp:
        own = {'GROK_NB_STORE': 'store', 'MPLCONFIGDIR': 'mpl', 'IPYTHONDIR': 'ipython', 'JUPYTER_CONFIG_DIR': 'jupyter'}
        env = dict(os.environ, OMP_NUM_THREADS='1', GROK_NB_SCALE='smoke', **{k: f'{tmp}/{v}' for k, v in own.items()})
        env['PATH'] = f'{Path(sys.executable).parent}{os.pathsep}{env.get("PATH", os.defpath)}'
        proc = subprocess.Popen(cmd, env=env, start_new_session=True)
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
        try: return proc.wait(seconds)
        except subprocess.TimeoutExpired:
            print(f'stopped: {Path(cmd[0]).name} took longer than {seconds:g} s', file=sys.stderr)
            return 124
        except KeyboardInterrupt: return 130
        finally: stop(proc)


if __name__ == '__main__': sys.exit(main(float(sys.argv[1]), sys.argv[2:]))

"What runs the tests: it waits as long as a slow machine needs, names what hangs or fails, and hands signals on."
import itertools
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT/'dev'))
from fresh import run, watch                    # noqa: E402
from suite import failure                       # noqa: E402

pytestmark = pytest.mark.skipif(os.name == 'nt', reason='needs make')
begins = "import os, time; print('begin', time.time(), 'nbs/slow.ipynb', sep='\\t', file=open(os.environ['GROK_NB_PROGRESS'], 'a'), flush=True); "


def python(code): return [sys.executable, '-c', code]


def test_what_hangs_is_named_and_ended(capfd, tmp_path):
    pid, hours = tmp_path/'pid', itertools.count(0, 3600)
    clock = lambda: next(hours) if pid.exists() and pid.read_text() else 0             # stands still until the command has begun
    code, running, _ = run(python(begins + f"open({str(pid)!r}, 'w').write(str(os.getpid())); time.sleep(10**6)"), hang=4000, clock=clock)
    assert (code, running) == (124, ['nbs/slow.ipynb']) and 'running: nbs/slow.ipynb' in capfd.readouterr().out
    with pytest.raises(ProcessLookupError): os.kill(int(pid.read_text()), 0)


def test_what_is_slow_but_moves_is_left_alone(tmp_path):
    "Ten hours in which something ends every half hour"
    class Slow:
        left = 20
        def wait(self, seconds):
            self.left -= 1
            if not self.left: return 0
            with open(tmp_path/'progress', 'a') as f: f.write('.')
            raise subprocess.TimeoutExpired('slow', seconds)
    hours = itertools.count(0, 900)
    assert watch(Slow(), tmp_path/'progress', [0], 1000, lambda: next(hours)) == 0


def test_ctrl_c_works_below_a_shell_that_ignores_it():
    "As behind `&` in a script, or nohup"
    usual = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try: code, _, _ = run(python("import signal\ntry: signal.raise_signal(signal.SIGINT)\nexcept KeyboardInterrupt: raise SystemExit(7)"))
    finally: signal.signal(signal.SIGINT, usual)
    assert code == 7


def test_a_failing_notebook_is_named_with_its_log(tmp_path):
    nb = tmp_path/'05_wrong.ipynb'
    nbformat.write(nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell('1/0')]), nb)
    done = subprocess.run([sys.executable, ROOT/'dev/suite.py', 'nbs'], env=os.environ | dict(NB=str(nb), GROK_NB_LOGS=str(tmp_path)), capture_output=True, text=True)
    last = done.stdout.splitlines()[-4:]
    assert done.returncode == 1 and 'ZeroDivisionError' in (tmp_path/'nbs.log').read_text()
    assert last == ['FAILED: notebooks run (nbdev_test)', '  alone: make test-nbs', f'  alone: make test-nbs NB={nb}', f'  log:   {tmp_path}/nbs.log']


def test_many_failures_are_counted():
    ended = [(f'tests/test_{i}.py::test', 1., False) for i in range(20)]
    lines = failure('py', 'tests', 1, [], ended, 'make test-py', "make test-py TESTS='{}'")
    assert "  alone: make test-py TESTS='tests/test_0.py::test'" in lines and '  and 12 more' in lines


def test_no_network_is_said_in_one_line(tmp_path):
    (tmp_path/'dev').mkdir()
    for f in ('Makefile', 'settings.ini', 'setup.py', 'constraints.txt', 'dev/setup.sh'): shutil.copy(ROOT/f, tmp_path/f)
    nowhere = dict(PIP_CONFIG_FILE=os.devnull, PIP_INDEX_URL='http://127.0.0.1:9/simple', PIP_EXTRA_INDEX_URL='', PIP_FIND_LINKS='', PIP_RETRIES='1')
    done = subprocess.run(['make', 'setup', f'PYTHON={sys.executable}'], cwd=tmp_path, env=os.environ | nowhere, capture_output=True, text=True)
    said = [o for o in done.stderr.splitlines() if not o.startswith('make')]
    assert done.returncode and len(said) == 1 and 'no package index could be reached' in said[0] and '.venv/pip.log' in said[0]

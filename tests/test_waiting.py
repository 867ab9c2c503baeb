"The tests themselves: none may hang on how fast a machine is, or on what the shell has switched off."
import ast
import signal
import subprocess
import sys
from pathlib import Path

import clocks
import pytest
import waiting
from conftest import LONG, group
from hypothesis import settings
from waiting import ended, started, unmoved, until

HERE = Path(__file__).resolve().parent
NOTEBOOKS = sorted(f for f in [HERE.parent/'index.ipynb', *(HERE.parent/'nbs').rglob('*.ipynb')] if not f.is_symlink() and not any(p[0] in '._' for p in f.relative_to(HERE.parent).parts))
CLOCKS = {'monotonic', 'perf_counter', 'process_time', 'wait_for_timeout'}


def numbers(call):
    "Numbers that a call is given as a time: `timeout=`, and what a process, an event or a queue waits for"
    waits = getattr(call.func, 'attr', '') in ('wait', 'join', 'set_default_timeout')
    given = [k.value for k in call.keywords if 'timeout' in (k.arg or '')] + call.args*waits
    def number(a): return isinstance(a, (ast.Constant, ast.BinOp)) and any(isinstance(o, ast.Constant) and isinstance(o.value, (int, float)) for o in ast.walk(a))
    return [a for a in given if (number(a) or isinstance(a, ast.Name)) and 'LIMIT' not in ast.unparse(a)]


def endless(node):
    "A loop that sleeps until something is true, with nothing to end it"
    return isinstance(node, ast.While) and any(getattr(getattr(o, 'func', None), 'attr', '') == 'sleep' for o in ast.walk(node))


def test_no_test_has_a_limit_or_a_clock_of_its_own():
    found = []
    for f in sorted(HERE.glob('*.py')):
        if f.name in ('waiting.py', Path(__file__).name): continue
        for node in ast.walk(ast.parse(f.read_text(encoding='utf-8'))):
            name = getattr(node, 'attr', getattr(node, 'id', ''))
            if name in CLOCKS or isinstance(node, ast.Call) and numbers(node) or endless(node): found.append(f'{f.name}:{node.lineno}: {ast.unparse(node)}')
    assert found == [], 'wait for the thing itself, with `waiting.until`'


def test_no_notebook_hangs_on_the_clock_or_on_what_ran_before():
    found = [f'{f.relative_to(HERE.parent)}[{i}] {why}: {code}' for f in NOTEBOOKS for i, why, code in clocks.faults(clocks.cells(f))]
    assert len(NOTEBOOKS) > 100
    assert not found, '\n'.join(['wait for the thing itself, with `grok_nb.lab.parts.until`; catch warnings in a block', *found])


WRONG = {
    'sleeps, and hopes': ['time.sleep(1)', 'while not ready(): time.sleep(.1)', '#| export\ndef f(): time.sleep(1)'],
    'races with a timer': ['threading.Timer(.5, lock.release).start()'],
    'gives up on a slow machine': ['assert came.wait(5)', 'queue.get(timeout=30)', 'until(ready, seconds=20)', 'until(ready, "ready", 20.)', 'def wait(job, seconds=60): pass',
                                   'while not over.wait(.1): look()', '#| export\ndef rest(thread): thread.join(5)', '#| export\nfor p in many: p.join(5)'],
    'has a limit of its own': ['end = time.monotonic() + 30'],
    'changes warnings for the whole process': ["warnings.simplefilter('ignore')", "if smoke: warnings.filterwarnings('error')", "with open(f): warnings.simplefilter('ignore')"],
    'hears a warning only if nobody has switched it off': ['test_warns(lambda: fit(exp))', 'with warnings.catch_warnings(record=True) as said: fit(exp)'],
    'asserts on the clock': ['assert time.time() < 7', 'begun = time.perf_counter()\nf()\nassert time.perf_counter() - begun < 2', 'assert 0 < run.seconds < 9', "assert t['seconds'] > 0",
                             'def clocked(f):\n    begun = time.perf_counter()\n    f()\n    return time.perf_counter() - begun\ndef both(): return dict(a=clocked(f), b=clocked(g))\n'
                             "cost = both()\nassert cost['a'] > 3*cost['b']", 'def took():\n    return time.process_time()\nRun.took = took\ntest_close(run.took(), 1.)'],
}
RIGHT = [
    "until(ready, 'ready')", 'until(ready, seconds=600.)', 'assert came.wait(600)', 'assert came.wait()', 'lock.acquire(timeout=0)', "', '.join(words)",
    '#| export\ndef beat():\n    while True:\n        time.sleep(.5)\n        tick()', '#| export\ndef beat():\n    while not over.wait(.1): tick()',
    '#| exporti\ndef stop(ps):\n    for p in ps:\n        p.join(5)\n        if p.is_alive(): p.kill()', '#| export\nself.timer = threading.Timer(self.delay, self.ask)',
    "with warnings.catch_warnings():\n    warnings.simplefilter('ignore')\n    fit(exp)", "with warnings.catch_warnings(record=True) as said:\n    warnings.simplefilter('always')\n    fit(exp)",
    'with warnings.catch_warnings(record=True): fit(exp)', 'begun = time.perf_counter()\nf()\ntime.perf_counter() - begun',
    'begun = time.time()\ntook = time.time() - begun\nassert took >= 0', 'def table():\n    t = time.time()\n    return frame(t)\ncost = table()\nassert (cost.bytes > 0).all()',
    'def alive(clock):\n    return time.time() - clock < patience\nassert alive(0) < 2', 'took = time.time()\ntook = 3\nassert took > 2',
]


@pytest.mark.parametrize('why, source', [(why, o) for why, sources in WRONG.items() for o in sources])
def test_what_hangs_on_the_clock_is_found(why, source): assert [o[1] for o in clocks.faults([clocks.cell(source)])] == [why]


@pytest.mark.parametrize('source', RIGHT)
def test_what_holds_on_any_machine_is_let_be(source): assert not list(clocks.faults([clocks.cell(source)]))


def test_workers_get_whole_groups():
    assert {g.split()[0] for g in LONG} <= {f.stem.removeprefix('test_') for f in HERE.glob('test_*.py')}
    assert group('tests/test_browser.py::test_panels_fit_the_screen[Voila-dark]') == 'browser Voila' in LONG
    assert group('tests/test_store.py::test_a[1]') == group('tests/test_store.py::test_b') == 'store'


def test_properties_have_no_deadline(): assert settings.default.deadline is None


def test_what_was_waited_for_is_said(monkeypatch):
    monkeypatch.setattr(waiting, 'LIMIT', .1)
    with pytest.raises(AssertionError, match='until the moon is blue'): until(lambda: False, 'the moon is blue')
    with started(sys.executable, '-c', 'import time; time.sleep(1000)') as p, pytest.raises(AssertionError, match='until a sleeper ended'): ended(p, 'a sleeper')


def test_what_moves_is_seen():
    ticks, beats = iter(range(100)), iter(range(100))
    with pytest.raises(AssertionError, match='the clock moved'): unmoved(lambda: next(ticks), lambda: next(beats), 'the clock')
    unmoved(lambda: 0, lambda: next(beats), 'a stone')


def test_ctrl_c_is_heard_by_us_and_by_what_we_start():
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    code = 'import signal, sys; print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)'
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with started(sys.executable, '-c', code, stdout=subprocess.PIPE) as p: assert ended(p, 'a question')[0] == 'True\n'
    finally: signal.signal(signal.SIGINT, before)


def test_a_process_is_killed_whatever_happens():
    with pytest.raises(InterruptedError), started(sys.executable, '-c', 'while True: pass') as p: raise InterruptedError
    assert p.returncode == -signal.SIGKILL

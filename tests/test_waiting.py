"The tests themselves: none may hang on how fast a machine is, or on what the shell has switched off."
import ast
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import waiting
from conftest import LONG, group
from hypothesis import settings
from waiting import ended, started, unmoved, until

HERE = Path(__file__).resolve().parent
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

"""Every check and every test, step by step: `python dev/suite.py [check] [nbs] [py] [kill] [cpu]`, the first three by default

A step that fails does not keep the others from running. The last lines say what failed, how to run it alone, and where its
log is. NB="nbs/..." takes some of the notebooks, TESTS="tests/test_x.py::test_y" some of the tests. ORDER=shared lets the notebooks
share two processes, ORDER=reverse does so and turns their order round. THREADS= (empty) leaves the threads to torch."""
import os
import shlex
import signal
import sys
import time
from pathlib import Path

from fresh import HANG, ROOT, run

BIN, LOGS = Path(sys.executable).parent, Path(os.environ.get('GROK_NB_LOGS') or ROOT/'.test')
PY = sys.executable
ask = lambda name: shlex.split(os.environ.get(name, ''))

CHECKS = {
    'sync': ('exported code equals the notebooks', [PY, 'dev/check.py', 'sync']),
    'clean': ('notebooks carry outputs and no noise', [PY, 'dev/check.py', 'clean']),
    'lines': ('lines by room and by claim', [PY, 'dev/check.py', 'lines']),
    'layers': ('rooms import only what they may (lint-imports)', [BIN/'lint-imports', '--no-logo', '--config', '.importlinter']),
    'slips': ('no slips in code or notebooks (ruff)', [PY, '-m', 'ruff', 'check', '.']),
}


def notebooks(*options):
    order = {'reverse': ['--shared', '--reverse'], 'shared': ['--shared']}.get(os.environ.get('ORDER'), [])
    return [PY, 'dev/notebooks.py', *options, *order, *ask('NB')]


def steps(which: list) -> dict:
    "Name -> (title, command, environment and limit, how to run it alone, how to run one part of it alone)"
    out = {}
    if 'check' in which: out |= {k: (title, cmd, {}, 'make check', '') for k, (title, cmd) in CHECKS.items()}
    if 'nbs' in which: out['nbs'] = 'notebooks run (nbdev_test)', notebooks(), {}, 'make test-nbs', 'make test-nbs NB={}'
    if 'py' in which:
        tests = [PY, '-m', 'pytest', '-q', '-rs', '-n', '2', *(ask('TESTS') or ['tests'])]
        out['py'] = 'tests (pytest)', tests, {}, 'make test-py', "make test-py TESTS='{}'"
    if 'kill' in which:
        tests = [PY, '-m', 'pytest', '-q', '-rs', '-n', '2', *(ask('TESTS') or ['tests/test_faults.py', 'tests/test_kill.py', 'tests/test_sweep.py', 'tests/test_shared.py', 'tests/test_remove.py', 'tests/test_signals.py', 'tests/test_browser.py'])]
        own = dict(GROK_NB_KILL='1', hang=2*HANG)                               # one of them fails and kills for many minutes
        out['kill'] = 'faults and kills at every write (pytest)', tests, own, 'make test-kill', "make test-kill TESTS='{}'"
    if 'cpu' in which:
        store = os.environ.get('GROK_NB_STORE', str(ROOT/'.grok_nb'))
        own = dict(GROK_NB_SCALE='cpu', GROK_NB_STORE=store, hang=12*HANG)      # chapters train for many minutes without a word
        out['cpu'] = 'notebooks run at the cpu scale', notebooks('--record'), own, 'make test-cpu', 'make test-cpu NB={}'
    return out


def span(seconds: float) -> str: return f'{seconds:.0f} s' if seconds < 100 else f'{seconds//60:.0f} min {seconds % 60:.0f} s'


def slowest(ended: list, n=10) -> str:
    "The parts that took longest"
    most = sorted(ended, key=lambda o: -o[1])[:n]
    return ', '.join(f'{name.removeprefix("nbs/").removeprefix("tests/").removesuffix(".ipynb")} {seconds:.0f}' for name, seconds, _ in most)


def failure(name, title, code, running, ended, alone, part, most=8) -> list:
    "What to say of a step that failed"
    bad = list(dict.fromkeys([n for n, _, ok in ended if not ok] + (running if code else [])))
    lines = [f'FAILED: {title}', f'  alone: {alone}']
    for b in bad[:most] if part else (): lines.append(f'  alone: {part.format(b)}' + (' (it was running at the end)' if b in running else ''))
    if len(bad) > most: lines.append(f'  and {len(bad) - most} more')
    return lines + [f'  log:   {os.path.relpath(LOGS/f"{name}.log", ROOT) if LOGS.is_relative_to(ROOT) else LOGS/f"{name}.log"}']


def main(which: list) -> int:
    "How many steps failed"
    LOGS.mkdir(exist_ok=True)
    bad, took = [], {}
    for name, (title, cmd, env, alone, part) in steps(which).items():
        print(f'\n== {title}', flush=True)
        begun = time.monotonic()
        with open(LOGS/f'{name}.log', 'wb') as log: code, running, ended = run([str(o) for o in cmd], log, **env)
        took[name] = time.monotonic() - begun
        if ended:
            print(f'slowest ({"CPU s" if name in ("nbs", "cpu") else "s"}): {slowest(ended)}', flush=True)
            (LOGS/f'{name}.times').write_text(''.join(f'{seconds:.1f}\t{what}\n' for what, seconds, _ in sorted(ended, key=lambda o: -o[1])))
        if code: bad += failure(name, title, code, running, ended, alone, part)
        if code == 130: break
    print(f'\n== {", ".join(f"{k} {span(v)}" for k, v in took.items())}; {span(sum(took.values()))} in all')
    print('\n'.join(bad) if bad else 'all passed')
    return int(bool(bad))


if __name__ == '__main__':
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    known = ('check', 'nbs', 'py', 'kill', 'cpu')
    if odd := [o for o in sys.argv[1:] if o not in known]: sys.exit(f'{odd[0]} is not known; use {", ".join(known)}')
    sys.exit(main(sys.argv[1:] or ['check', 'nbs', 'py']))

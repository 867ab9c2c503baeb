"A sweep loses nothing when the process that called it, its scheduler or its workers are killed."
import os
import signal
import subprocess
import sys
import time

import pandas as pd
import pytest

from grok_nb.all import AdamW, Experiment, MLP, ModularArithmetic, Stop, Store, sweep

exp = Experiment(ModularArithmetic(p=23, train_frac=.7), MLP(width=64, act='square'), AdamW(.02, wd=.01), steps=600, seeds=2)
grid = exp.grid(wd=[.01, .5], train_frac=[.5, .6])

head = '''
import sys
sys.path.insert(0, {here!r})
from test_sweep import grid
from grok_nb.all import Stop, sweep
if __name__ == '__main__':
'''
alone = head + '    sweep(grid, store={store!r}, stop=Stop(), snapshot=.2)\n'
cluster = head + '''
    from dask.distributed import Client, LocalCluster
    with LocalCluster(2, threads_per_worker=1, dashboard_address=None) as c, Client(c) as client:
        sweep(grid, client.get_executor(), store={store!r}, stop=Stop(), snapshot=.2)
'''


@pytest.fixture(scope='module')
def expected(tmp_path_factory):
    return sweep(grid, store=tmp_path_factory.mktemp('whole'), stop=Stop())


def begin(script, store, tmp_path):
    "A process that sweeps."
    f = tmp_path/'sweeping.py'
    f.write_text(script.format(store=str(store), here=os.path.dirname(__file__)))
    return subprocess.Popen([sys.executable, str(f)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def taken(store): return {p.path.name: (p.manifest() or {}).get('taken', 0) for p in Store(store).packs()}


def after_a_commit(store, than, p):
    "Wait until more steps are committed than before."
    until = time.monotonic() + 120
    while time.monotonic() < until:
        now = taken(store)
        if sum(now.values()) > than: return now
        if p.poll() is not None: return now
        time.sleep(.02)
    raise AssertionError('nothing was committed')


def same(a, b):
    pd.testing.assert_frame_equal(*(r.frame.drop(columns='seconds') for r in (a, b)), check_exact=True)
    for k in range(len(a)): pd.testing.assert_frame_equal(a.run(k).history, b.run(k).history, check_exact=True)


def check(store, expected):
    "All is there, equal, and every sitting began at a commit."
    result = sweep(grid, store=store, stop=Stop())
    assert result.taken == 0                                 # nothing was left to do
    same(result, expected)
    for p in Store(store).packs():
        m = p.manifest()
        starts = [s['taken'] for s in m['sittings']]
        assert starts == sorted(starts) and starts[0] == 0
        rows = p.runs()
        assert m['taken'] == rows.step.sum()                 # steps that count were counted once
    return [len(p.manifest()['sittings']) for p in Store(store).packs()]


def test_a_sweep_that_is_killed_again_and_again(tmp_path, expected):
    store, seen, kills = tmp_path/'store', 0, 0
    while kills < 3:
        p = begin(alone, store, tmp_path)
        now = after_a_commit(store, seen, p)
        if p.poll() is not None: break
        p.send_signal(signal.SIGKILL)
        p.wait()
        kills, seen = kills + 1, sum(now.values())
    assert kills >= 2
    assert begin(alone, store, tmp_path).wait(120) == 0
    assert max(check(store, expected)) > 1


def test_client_and_scheduler_are_killed(tmp_path, expected):
    store = tmp_path/'store'
    p = begin(cluster, store, tmp_path)
    after_a_commit(store, 0, p)
    p.send_signal(signal.SIGKILL)                            # the scheduler of a local cluster lives in it
    p.wait()
    assert begin(cluster, store, tmp_path).wait(240) == 0
    check(store, expected)


def test_a_broken_pool_of_processes_is_said_and_nothing_is_lost(tmp_path, expected):
    from concurrent.futures import ProcessPoolExecutor
    from multiprocessing import get_context
    from threading import Thread
    store = Store(tmp_path/'store')

    def kill():
        until = time.monotonic() + 100
        while time.monotonic() < until:
            for pack in store.packs():
                m = pack.manifest()
                if m and m['taken'] and not m['finished']: return os.kill(m['sittings'][-1]['pid'], signal.SIGKILL)
            time.sleep(.02)

    killer = Thread(target=kill)
    killer.start()
    with ProcessPoolExecutor(2, mp_context=get_context('spawn')) as pool, pytest.warns(UserWarning):
        result = sweep(grid, pool, store=store, stop=Stop(), snapshot=.2, retries=1)
    killer.join()
    assert result.failed.error.str.contains('start the sweep again').any()
    assert begin(alone, store.path, tmp_path).wait(120) == 0
    check(store.path, expected)

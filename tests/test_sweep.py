"A sweep loses nothing when the process that called it, its scheduler or its workers are killed."
import json
import os
import random
import signal
from contextlib import ExitStack
from pathlib import Path

import pytest

# Not `grok_nb.all`: a dozen processes import this file
from grok_nb.models.mlp import MLP
from grok_nb.tasks.modular import ModularArithmetic
from grok_nb.train.experiment import Experiment, replica_ids
from grok_nb.train.optim import AdamW
from grok_nb.train.stop import Stop
from grok_nb.train.record import find
from grok_nb.train.runs import index
from grok_nb.train.store import Store
from grok_nb.train.sweep import sweep
from same import left_behind, same, tables
from waiting import LIMIT, forked, until

exp = Experiment(ModularArithmetic(p=23, train_frac=.7), MLP(width=16, act='square'), AdamW(.02, wd=.01), steps=250, seeds=2)
grid = exp.grid(wd=[.01, .5], train_frac=[.5, .6])


# What is to be killed commits at every turn, so that there are many chances to hit one, and waits before its end: see `held`

def alone(store, commit_every): sweep(grid, store=store, stop=Stop(), commit_every=commit_every, ask=held(store))


def cluster(store, commit_every):
    import dask
    from dask.distributed import Client, LocalCluster
    dask.config.set({f'distributed.comm.timeouts.{k}': f'{LIMIT} s' for k in ('connect', 'tcp')} | {'distributed.scheduler.worker-ttl': None})
    with LocalCluster(2, threads_per_worker=1, dashboard_address=None) as c, Client(c) as client:
        sweep(grid, Held(client.get_executor()), store=store, stop=Stop(), commit_every=commit_every)


def hold_of(store): return Path(store).with_suffix('.hold')


def held(store):
    "What a sweep asks at every turn: to wait, while there is a file that says so, once as many steps as it says are committed."
    def ask():
        try: most = int(hold_of(store).read_text())
        except FileNotFoundError: return ''
        return 'hold' if taken(store) >= most else ''
    return ask


def work(do, shard, store, **how): return do(shard, store, ask=held(store), **how)


class Held:
    "An executor whose workers ask too."
    def __init__(self, executor): self.executor = executor
    def submit(self, *args, **kw): return self.executor.submit(work, *args, **kw)


@pytest.fixture(scope='module')
def expected(tmp_path_factory):
    return sweep(grid, store=tmp_path_factory.mktemp('whole'), stop=Stop())


def begin(do, store):
    "A process that sweeps, until the block ends."
    return forked(do, str(store), 0 if hold_of(store).exists() else 10)


def finish(do, store):
    "Let a sweep come to its end."
    hold_of(store).unlink(missing_ok=True)
    with begin(do, store) as p: until(lambda: p.exitcode is not None, 'the sweep ended')
    assert p.exitcode == 0


def taken(store): return int(index(store).step.fillna(0).sum())


def killed(steps, do, store, stack):
    "Begin a sweep, and kill it once so many steps are committed; the number that then is. Its workers are left alone until the stack ends."
    hold_of(store).write_text(str(steps + 100))
    p = stack.enter_context(begin(do, store))
    until(lambda: taken(store) >= steps or p.exitcode is not None, f'{steps} steps of the sweep are committed', every=.02)
    assert p.exitcode is None, 'the sweep ended before it was killed'
    p.kill()
    p.join(LIMIT)
    return taken(store)


def equal(a, b):
    tables(*(r.frame.drop(columns='seconds') for r in (a, b)))
    for k in range(len(a)): same(a.run(k), b.run(k))


def check(store, expected):
    "All is there, equal, and every sitting began at a commit; in how many of them each replica was trained."
    result, store = sweep(grid, store=store, stop=Stop()), Store(store)
    assert result.taken == 0                                 # nothing was left to do
    equal(result, expected)
    found = find(store, [k for e in grid for k in replica_ids(e)])
    for key, r in found.items():
        steps = [s for c, _ in r.where for s in c.past(key)['step'].tolist()]
        assert len(steps) == len(set(steps))                 # what was measured was measured once
    assert left_behind(store.path) == []
    return [len(r.sources) for r in found.values()]


def test_a_sweep_that_is_killed_again_and_again(tmp_path, expected):
    store, dice, seen = tmp_path/'store', random.Random(), [0]
    with ExitStack() as stack:
        for _ in range(3): seen.append(killed(seen[-1] + dice.randrange(1, 100), alone, store, stack))
        finish(alone, store)
    assert seen == sorted(seen)
    assert max(check(store, expected)) == 4


def test_client_and_scheduler_are_killed(tmp_path, expected):
    store = tmp_path/'store'
    with ExitStack() as stack:
        killed(1, cluster, store, stack)                     # the scheduler of a local cluster lives in it
        finish(cluster, store)
        check(store, expected)


def test_a_broken_pool_of_processes_is_said_and_nothing_is_lost(tmp_path, expected):
    from concurrent.futures import ProcessPoolExecutor
    from conftest import children
    from threading import Thread
    store = Store(tmp_path/'store')
    hold_of(store.path).write_text('1')

    def under_way(): return taken(store) and [s for s in store.held().values() if (s.path/'.beat').exists()]

    def kill():
        try: os.kill(json.loads((until(under_way, 'a worker commits a step', every=.02)[0].path/'.beat').read_text())['pid'], signal.SIGKILL)
        finally: hold_of(store.path).unlink()

    killer = Thread(target=kill)
    killer.start()
    with ProcessPoolExecutor(2, mp_context=children) as pool, pytest.warns(UserWarning):
        result = sweep(grid, Held(pool), store=store, stop=Stop(), commit_every=0, retries=1)
    killer.join()
    assert result.failed.error.str.contains('start the sweep again').any()
    finish(alone, store.path)
    check(store.path, expected)

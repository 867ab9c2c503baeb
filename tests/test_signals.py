"SIGTERM, SIGHUP and Ctrl-C end a run or a sweep with all its processes, after a commit; who waits for another says so."
import json
import multiprocessing
import os
import platform
import signal
import threading
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest
from filelock import FileLock

# Not `grok_nb.all`: other processes import this file
from grok_nb.models.mlp import MLP
from grok_nb.tasks.modular import ModularArithmetic
from grok_nb.train.experiment import Experiment, replica_ids
from grok_nb.train.events import interruptible, listening
from grok_nb.train.fit import fit
from grok_nb.train.optim import AdamW
from grok_nb.train.record import find
from grok_nb.train.run import open_run
from grok_nb.train.runs import index, runs
from grok_nb.train.shard import all_replicas, make_shards, train_shard
from grok_nb.train.store import Store
from grok_nb.train.sweep import sweep
from waiting import LIMIT, forked, until

pytestmark = pytest.mark.skipif(os.name == 'nt', reason='needs SIGTERM and SIGHUP')
exp = Experiment(ModularArithmetic(p=13, train_frac=.6), MLP(width=16), AdamW(.01), steps=10**7, seeds=2)
brief = exp.but(steps=60)
signals = [signal.SIGTERM, signal.SIGHUP]
never = 1e9   # seconds between commits: what is on disk was put there at the start, or because of a signal


def stepped(store): return Path(store).with_suffix('.stepped')


def trains(store):
    with listening(lambda e: e.step and stepped(store).touch()): fit(exp, store, 'cpu', progress=False, commit_every=never)
    stepped(store).with_suffix('.after').touch()


def sweeps(store):
    turns = []
    def ask():
        turns.append(1)
        if len(turns) > 20: stepped(store).touch()
        return ''
    sweep([exp, exp.but(lr=.02)], store=store, slots=2, device='cpu', progress=False, commit_every=never, ask=ask)
    stepped(store).with_suffix('.after').touch()


def committed(store):
    "Steps on disk."
    return int(index(store).step.fillna(0).sum())


@pytest.mark.parametrize('sign', signals)
@pytest.mark.parametrize('do', [trains, sweeps])
def test_a_signal_ends_the_process_once_all_is_committed(do, sign, tmp_path):
    store = tmp_path/'store'
    with forked(do, str(store)) as p:
        until(lambda: stepped(store).exists() or p.exitcode is not None, 'a step is taken')
        before = committed(store)
        os.kill(p.pid, sign)
        until(lambda: p.exitcode is not None, f'the process ends of {sign!r}')
    assert p.exitcode == -sign                                      # as it would have without us
    assert committed(store) > before                                # but not before it had committed
    assert not stepped(store).with_suffix('.after').exists()        # the line after `fit` or `sweep` was not reached


@pytest.fixture
def handled():
    "Signals with a handler that notes them and goes on."
    heard = []
    old = {s: signal.signal(s, lambda s, _: heard.append(s)) for s in signals}
    yield heard
    for s,h in old.items(): signal.signal(s, h)


def at_20(sign):
    "A question that presses a key at the 20th time."
    count = iter(range(10**9))
    def ask(*_):
        if next(count) == 20: signal.raise_signal(sign)
        return ''
    return ask


@pytest.mark.parametrize('sign', signals)
def test_a_handler_of_ones_own_is_called_after_the_commit_and_gets_what_was_done(sign, handled, tmp_path):
    usual = {s: signal.getsignal(s) for s in signals}
    with listening(ask=at_20(sign)): run = fit(brief, tmp_path/'fit', 'cpu', commit_every=never)
    assert handled == [sign] and not run.finished and run.step == open_run(brief, tmp_path/'fit').step == 20
    result = sweep([brief, brief.but(train_frac=.5)], store=tmp_path/'sweep', device='cpu', commit_every=never, ask=at_20(sign))
    assert handled == [sign]*2 and result.stopped and 0 < result.taken == committed(tmp_path/'sweep') < brief.steps*2
    assert {s: signal.getsignal(s) for s in signals} == usual
    assert fit(brief, tmp_path/'fit', 'cpu').finished and sweep(result.experiments, store=tmp_path/'sweep', device='cpu').frame.ended.eq('finished').all()


@pytest.mark.parametrize('sign', [signal.SIGINT, *signals])
def test_what_was_ignored_stays_ignored(sign, tmp_path):
    usual = signal.signal(sign, signal.SIG_IGN)                     # as `nohup` does
    try:
        with listening(ask=at_20(sign)): assert fit(brief, tmp_path/'fit', 'cpu').finished
        assert not sweep([brief], store=tmp_path/'sweep', device='cpu', ask=at_20(sign)).stopped
        assert signal.getsignal(sign) is signal.SIG_IGN
    finally: signal.signal(sign, usual)


@pytest.mark.parametrize('first', [signal.SIGINT, *signals])
@pytest.mark.parametrize('second', [signal.SIGINT, *signals])
def test_a_second_signal_interrupts_at_once(first, second, handled):
    with pytest.raises(KeyboardInterrupt), interruptible() as stop:
        signal.raise_signal(first)
        assert stop.is_set() and not handled
        signal.raise_signal(second)
    assert set(handled) == {first, second} - {signal.SIGINT}


def test_another_thread_leaves_all_signals_alone(tmp_path):
    usual, got = {s: signal.getsignal(s) for s in signals}, []
    def same(e, step): got.append({s: signal.getsignal(s) for s in signals} == usual)
    def train():
        with listening(ask=same): fit(brief, tmp_path, 'cpu', progress=False)
    t = threading.Thread(target=train)
    t.start()
    t.join(LIMIT)
    assert got and all(got)


def sleeps(awake):
    awake.set()                                                     # from here on it hears: Python drops what comes while it forks
    time.sleep(LIMIT)


@pytest.mark.parametrize('sign', signals)
def test_a_child_that_was_forked_meanwhile_dies_as_ever(sign):
    context = multiprocessing.get_context('fork')
    awake = context.Event()
    with interruptible():
        p = context.Process(target=sleeps, args=(awake,), daemon=True)
        p.start()
        assert awake.wait(LIMIT)
        os.kill(p.pid, sign)
        p.join(LIMIT)
    assert p.exitcode == -sign


# --- pools of processes --------------------------------------------------------------------------------------------

def pools(store, kind, exps):
    "A sweep on a pool of two processes; what it says in the end goes to a file."
    context = multiprocessing.get_context(kind)
    if kind == 'forkserver': context.set_forkserver_preload([__name__])      # imports once, not in each of the two
    with ProcessPoolExecutor(2, mp_context=context) as pool:
        result = sweep(exps, pool, store=store, device='cpu', progress=False, commit_every=never)
    said = dict(stopped=result.stopped, taken=result.taken, failed=len(result.failed))
    stepped(store).write_text(json.dumps(said))


def beats(store):
    "pid -> steps, of the shards that were trained for a while: more steps than are on disk"
    store, out = Store(store), {}
    held = store.held()
    for s in set(held.values()):
        try: b = json.loads((s.path/'.beat').read_text())
        except (OSError, ValueError): continue
        there = find(store, [k for k, o in held.items() if o == s])
        if there and b['taken'] > sum(r.step for r in there.values()): out[b['pid']] = b['taken']
    return out


def alive(pids): return [i for i in pids if psutil.pid_exists(i) and psutil.Process(i).status() != psutil.STATUS_ZOMBIE]


def under_way(store, p, n):
    "The beats of `n` shards, once all are under way."
    until(lambda: p.exitcode is not None or len(beats(store)) == n, f'{n} shards are under way')
    assert p.exitcode is None
    return beats(store)


def signs(store): return list((Path(store)/'segments').glob('.sweep-*'))


ALL = bool(os.environ.get('GROK_NB_KILL'))           # as `make test-kill` sets it: each way to send it to each kind of pool, else each of both at least once
kinds = ['fork', 'spawn', 'forkserver']
ways = [(send, kind) for send in (os.kill, os.killpg) for kind in kinds if ALL or (send is os.killpg) == (kind == 'spawn')]
many = [exp.but(train_frac=f) for f in (.4, .5, .6, .7, .8)]                # five shards: two under way, and more in the queue


@pytest.mark.parametrize('send, kind', ways)                                # to the process alone, as a notebook or a script does; to all, as a terminal does
def test_one_ctrl_c_ends_a_sweep_on_a_pool(send, kind, tmp_path):
    store = tmp_path/'store'
    with forked(pools, str(store), kind, many) as p:
        seen = under_way(store, p, 2)
        send(p.pid, signal.SIGINT)
        until(lambda: p.exitcode is not None, 'the sweep and its pool end')
        until(lambda: not alive(seen), 'the workers end')
        assert p.exitcode == 0
    said = json.loads(stepped(store).read_text())
    assert said['stopped'] and not said['failed'] and committed(store) >= sum(seen.values())


@pytest.mark.parametrize('sign', signals)
def test_a_signal_ends_a_pool_with_its_sweep(sign, tmp_path):
    store = tmp_path/'store'
    with forked(pools, str(store), 'spawn', many) as p:
        seen = under_way(store, p, 2)
        os.kill(p.pid, sign)
        until(lambda: p.exitcode is not None, 'the sweep ends')
        assert p.exitcode == -sign and committed(store) >= sum(seen.values())   # all was committed before it ended
        until(lambda: not alive(seen), 'the workers end')


@pytest.mark.parametrize('kind', kinds)
def test_workers_whose_parent_is_killed_commit_and_end(kind, tmp_path):
    store = tmp_path/'store'
    soon = exp.but(steps=30, train_frac=.5)
    with forked(pools, str(store), kind, [exp, soon]) as p:                 # one is soon done, and its worker idle
        until(lambda: p.exitcode is not None or soon.id in set(runs(store).query('finished').id), 'the short one is done')
        seen = under_way(store, p, 1)
        below = [o.pid for o in psutil.Process(p.pid).children(recursive=True)]
        assert len(signs(store)) == 1 and len(below) >= 2 and set(seen) < set(below)
        p.kill()
        p.join(LIMIT)
        until(lambda: not alive(below), 'the workers end')
    assert committed(store) >= sum(seen.values())
    assert not signs(store)                                         # nothing is left behind


# --- wishes --------------------------------------------------------------------------------------------------------

def wishing(store, kind, by):
    "A sweep on an executor that is to stop once its workers are at work, by a wish of `ask` or of a listener."
    executor, n = (ThreadPoolExecutor(1), 1) if kind == 'thread' else (ProcessPoolExecutor(2, mp_context=multiprocessing.get_context(kind)), 2)
    seen, told = {}, []
    def ask(*now):
        stepped(store).with_suffix('.asked').open('a').write(f'{os.getpid()}\n')
        told.append((now[0].id, now[1], committed(store)) if now else ())
        seen.update(found if len(found := beats(store)) == n else {})
        return 'stop' if seen else ''
    mine = ask if by == 'sweep' else None
    with executor as pool, listening(ask=None if mine else ask):
        result = sweep(many, pool, store=store, device='cpu', progress=False, commit_every=never, ask=mine)
    said = dict(stopped=result.stopped, failed=len(result.failed), taken=sum(seen.values()), pid=os.getpid(), told=told)
    stepped(store).write_text(json.dumps(said))


@pytest.mark.parametrize('kind, by', [('forkserver', 'sweep'), ('fork', 'listener'), ('thread', 'sweep')])
def test_a_wish_ends_a_sweep_on_any_executor(kind, by, tmp_path):
    "Threads stand for the workers of a cluster, which are nobody's children either."
    store = tmp_path/'store'
    with forked(wishing, str(store), kind, by) as p:
        until(lambda: p.exitcode is not None, 'the sweep and its workers end')
        assert p.exitcode == 0
    said = json.loads(stepped(store).read_text())
    assert said['stopped'] and not said['failed'] and committed(store) >= said['taken'] > 0
    assert set(stepped(store).with_suffix('.asked').read_text().split()) == {str(said['pid'])}       # not the copies that are born by forking
    assert not Store(store).held() and not signs(store)
    if by == 'listener': assert {i for i, *_ in said['told']} == {e.id for e in many} and all(step <= most for _, step, most in said['told'])


def test_what_others_train_is_not_held(tmp_path):
    with ThreadPoolExecutor(1) as pool, pytest.warns(UserWarning, match='can be stopped, but not held'):
        assert sweep([brief], pool, store=tmp_path, device='cpu', ask=lambda: 'hold').run(0).finished


def test_signs_of_the_dead_are_cleared_away(tmp_path):
    store = Store(tmp_path)
    fit(brief.but(steps=1), store)
    dead, alive = store.root/'.sweep-dead', FileLock(str(store.root/'.sweep-alive'))
    dead.touch()
    with alive, ThreadPoolExecutor(1) as pool: sweep([brief], pool, store=store, device='cpu')
    assert signs(tmp_path) == [Path(alive.lock_file)]


def child_says(caller, out):
    from grok_nb.train.shard import _is_child
    said = []
    t = threading.Thread(target=lambda: said.append(_is_child(caller)))
    t.start(); t.join()
    out.put((_is_child(caller), *said))


def test_only_the_main_thread_of_a_child_process_follows_its_parent():
    from conftest import children
    from grok_nb.train.shard import _is_child
    host, me, out = platform.node(), os.getpid(), children.Queue()
    for caller,want in {(host, me, 'x'): (True, False), (host, me + 1, 'x'): (False, False), ('elsewhere', me, 'x'): (False, False), None: (False, False)}.items():
        p = children.Process(target=child_says, args=(caller, out))
        p.start()
        assert out.get(timeout=LIMIT) == want                       # a worker of Dask works in another thread, or is no child of ours
        p.join(LIMIT)
    assert not _is_child((host, me, 'x'))


# --- waiting for another process -----------------------------------------------------------------------------------

def test_a_sweep_that_waits_for_others_says_so_once(tmp_path, capsys):
    store, shard, said, got, asked = Store(tmp_path), make_shards(all_replicas([brief]))[0], '', [], []
    def ask(): asked.append(1); return ''
    segment, mine, lock = store.claim(shard.id, list(replica_ids(brief)))
    assert mine == list(replica_ids(brief)) and not store.claim('x', mine)[0]
    try:
        t = threading.Thread(target=lambda: got.append(train_shard(shard, store, 'cpu', ask=ask)))
        t.start()
        def told():
            nonlocal said
            said += capsys.readouterr().err
            return 'waiting' in said
        until(told, 'it says that it waits')
        until(lambda: len(asked) > 5, 'it has looked at the claim some times')
        assert not got
        assert sweep([brief], store=store, device='cpu', ask=lambda: 'stop').stopped
        said += capsys.readouterr().err
    finally: store.release(segment, lock)
    t.join(LIMIT)
    said += capsys.readouterr().err
    assert got[0]['taken'] == 120 and not got[0]['stopped']
    assert said == 'sweep: another process is training these replicas; waiting for it\n'*2     # for the shard and for the sweep

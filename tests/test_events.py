"Listeners hear of the end of each run once, whoever trained it and wherever"
import pickle
from collections import Counter
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor

import numpy as np
import pytest

from conftest import children
from grok_nb.all import AdamW, Continued, Experiment, Free, MLP, ModularArithmetic, Norms, fit, open_run, runs, search, sweep, transfer
from grok_nb.tasks.config import ConfigError
from grok_nb.train.events import listening
from same import tables

weak = Experiment(ModularArithmetic(p=7, train_frac=.8), MLP(width=8, embed=Free(3)), AdamW(lr=.03), steps=12, seeds=3)
strong = [transfer(weak, weak.but({'model.embed': Free(6), 'optim.lr': lr}), at='end') for lr in (.01, .02)]


def heard(do, *args, **kw):
    "What a call gives, and the ends that it told of: id -> how often, and whether all had ended."
    ends, done = Counter(), []
    def hear(event):
        if event.run is None: return
        assert event.run.config.id == event.exp.id and event.run.step == event.step
        ends[event.exp.id] += 1
        done.append(not event.run.interrupted)
    with listening(hear): out = do(*args, progress=False, **kw)
    return out, ends, all(done)


def once(*exps): return {e.id: 1 for e in exps}


@pytest.fixture(scope='module')
def pool():
    with ProcessPoolExecutor(2, mp_context=children) as p: yield p


@pytest.fixture(params=['here', 'there'])
def executor(request): return request.getfixturevalue('pool') if request.param == 'there' else None


def test_a_sweep_tells_each_end_once(executor, tmp_path):
    "Also of what others begin with, and if its replicas are in several shards; not of what failed."
    lost = weak.but(start=Continued(weak.but({'model.width': 5})))
    some = [weak, *strong, weak.but(lr=1e30), lost]
    with pytest.warns(UserWarning, match='3 replicas could not be trained'):
        result, ends, done = heard(sweep, some, executor, store=tmp_path, device='cpu', slots=1)
    assert result.failed.number.unique().tolist() == [4] and ends == once(*some[:4]) and done
    assert heard(sweep, some[:4], executor, store=tmp_path, device='cpu')[1:] == (once(*some[:4]), True)      # they are in the store: the same again


def test_the_end_of_what_others_begin_with_is_told(executor, tmp_path):
    assert heard(sweep, strong, executor, store=tmp_path/'sweep', device='cpu')[1:] == (once(weak, *strong), True)
    merged = strong[0].but({'model.embed': Free(6), 'steps': 5, 'start': Continued(strong[0], merge=True)})
    assert heard(sweep, [merged], executor, store=tmp_path/'chain', device='cpu')[1:] == (once(weak, strong[0], merged), True)
    assert heard(fit, merged, tmp_path/'fit', device='cpu')[1:] == (once(weak, strong[0], merged), True)


def test_a_stopped_sweep_tells_of_what_is_done_and_of_what_was_begun(executor, tmp_path):
    "They share replicas, and so a shard; a third one waits in another."
    long, count = weak.but(steps=10**7), []
    def ask():
        count.append(set(runs(tmp_path).query('finished').id) if len(count) % 50 == 0 or executor else set())
        return 'stop' if weak.id in count[-1] else ''
    result, ends, _ = heard(sweep, [weak, long], executor, store=tmp_path, device='cpu', commit_every=0, ask=ask)
    assert result.stopped and ends == once(weak, long)
    assert open_run(weak, tmp_path).finished and open_run(long, tmp_path).interrupted


def test_a_search_tells_of_a_point_when_it_is_dropped_or_done(executor, tmp_path):
    "And not after each of its rounds; a point that is asked for again is the same run."
    def look(progress): return search(weak.but(steps=27), {'optim.lr': [.001, .003, .01, .03]}, 6, least=3, batch=3, executor=executor, store=tmp_path, device='cpu')
    found, ends, done = heard(look)
    assert len(found.rounds) > 2 and ends == once(*found.result.experiments) and len(ends) < 6 and done
    assert heard(look)[1] == ends                                      # all of it is in the store


def test_measurements_come_from_other_processes_on_request(pool, tmp_path):
    "Each once, as they are stored, before the end; only new ones when a sweep goes on; none where nobody asked."
    some = [weak.but(probes=(Norms(),)), weak.but(lr=.01, seeds=2)]
    for steps in (12, 20):
        told, order = {}, []
        def hear(event):
            order.append((event.exp.id, event.run is not None))
            for i, step, now in event.rows() if event.run is None else ():
                assert (event.exp.id, step, i) not in told and event.pool is None
                told[event.exp.id, step, i] = now
        now = [e.but(steps=steps) for e in some]
        with listening(hear, workers=0.): result = sweep(now, pool, store=tmp_path, device='cpu', commit_every=0, progress=False)
        for e, r in zip(now, map(result.run, range(2))):
            h = r.history.set_index(['step', 'split', 'replica'])
            want = {(e.id, step, i) for step, _, i in h.index if steps == 12 or step > 12}
            assert {k for k in told if k[0] == e.id} == want and order.index((e.id, True)) == max(j for j, o in enumerate(order) if o[0] == e.id)
            for (_, step, i), v in ((k, told[k]) for k in want):
                assert np.isclose(v['test accuracy'], h.accuracy[step, 'test', i]) and np.isclose(v['train loss'], h.loss[step, 'train', i])
                assert ('norm' in v) == bool(e.probes)
    with listening(lambda event: order.append(event.run)): sweep([weak.but(lr=.07)], pool, store=tmp_path, device='cpu', progress=False)
    assert order[-1] and sum(o is None for o in order) == 0


def test_measurements_of_what_others_begin_with_come_too(pool, tmp_path):
    "Before their ends; not those that were in the store already."
    for some in (strong[:1], strong):
        told, order = Counter(), []
        def hear(event):
            order.append((event.exp.id, event.run is not None))
            if event.run is None: told.update((event.exp.id, step, i) for i, step, _ in event.rows())
        with listening(hear, workers=0.): sweep(some, pool, store=tmp_path, device='cpu', commit_every=0, progress=False)
        new = [weak, strong[0]] if len(some) == 1 else [strong[1]]
        assert set(told) == {(e.id, step, i) for e in new for step in range(13) for i in range(3)} and set(told.values()) == {1}
        for e in new: assert order.index((e.id, True)) > max(j for j, o in enumerate(order) if o == (e.id, False))


def test_threads_of_this_process_send_each_measurement_once(tmp_path):
    "Its listeners hear them at once, and so not again from the store."
    told = Counter()
    def hear(event): told.update((event.exp.id, s, i) for i, s in (zip(event.replicas, event.steps) if event.run is None else ()))
    some = [weak, weak.but(lr=.01)]
    with ThreadPoolExecutor(2) as threads, listening(hear, workers=0.): sweep(some, threads, store=tmp_path, device='cpu', commit_every=0, progress=False, slots=1)
    assert len(told) == 2*3*13 and set(told.values()) == {1}


def in_a_sweep(exp, store, **kw): return sweep([exp], store=store, **kw).run(0)


def in_threads(exp, store, **kw):
    with ThreadPoolExecutor(1) as threads: return sweep([exp], threads, store=store, **kw).run(0)


@pytest.mark.parametrize('train', [fit, in_a_sweep, in_threads], ids=['fit', 'sweep', 'threads'])
@pytest.mark.parametrize('at', [0, 5, 12, 13])
def test_what_a_listener_raises_ends_the_call_and_costs_nothing(train, at, tmp_path):
    "Neither is a replica said to have failed, nor is a step lost; the last event is the end."
    how, seen, exp = dict(device='cpu', progress=False, commit_every=1e9), [], weak.but(probes=(Norms(),))
    def hear(event):
        seen.append(event)
        if len(seen) > at: raise OSError('the logger is down')
    with listening(hear), pytest.raises(OSError, match='the logger is down'): train(exp, tmp_path/'a', **how)
    assert open_run(exp, tmp_path/'a').step == min(at, 12) and len(seen) == at + 1
    tables(fit(exp, tmp_path/'a', device='cpu').probes, fit(exp, tmp_path/'b', device='cpu').probes)


@pytest.mark.parametrize('said', [True, False, 'pause', 1])
def test_an_answer_that_is_none_is_refused(said, tmp_path):
    with listening(ask=lambda exp, step: said), pytest.raises(ConfigError, match='listening: ask=.*to go on'): in_a_sweep(weak, tmp_path)
    with pytest.raises(ConfigError, match='sweep: ask=.*to go on'): in_a_sweep(weak, tmp_path, ask=lambda: said)


@pytest.mark.parametrize('how', [dict(hear=5), dict(ask='stop'), dict(workers='1.'), dict(workers=-1)])
def test_who_cannot_listen_is_refused_at_once(how):
    with pytest.raises(ConfigError, match=f'listening: {next(iter(how))}='), listening(**how): pass


def test_a_measurement_can_be_sent_elsewhere_and_says_what_it_lacks(tmp_path):
    heard = []
    with listening(lambda e: heard.append((e, pickle.loads(pickle.dumps(e)))) if e.run is None else None): fit(weak, tmp_path, device='cpu')
    for one in heard[3]:
        assert list(one.rows()) == list(heard[3][0].rows()) and one.slots == []
        with pytest.raises(ConfigError, match='bank must be asked for while `hear` has the measurement'): len(one.bank)

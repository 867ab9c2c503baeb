"""Whatever `fit` can do a sweep can: a start, weights at events, early leaving, and all of them together"""
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from grok_nb.all import (AdamW, Boolean, Continued, Cosine, Experiment, Free, Grokfast, Hinge, LabelNoise, LowRank, MLP, ModularArithmetic, Muon, NormScaled, SGD,
                         Stop, Store, chain, fit, open_run, sweep, transfer)
from grok_nb.train import loop, pool as engine
from grok_nb.train.capture import Captured
from grok_nb.train.events import listening
from grok_nb.train.pool import Pool, full_pool
from grok_nb.train.probes import Norms
from grok_nb.train.runs import index, runs
from same import agree, same, tables, tensors

weak = Experiment(ModularArithmetic(p=11, train_frac=.8), MLP(width=32, embed=Free(6)), AdamW(lr=.03, wd=1.), steps=150, seeds=2)
large = weak.but({'model.embed': Free(9), 'steps': 60})


def moved(**more): return transfer(weak, large.but(**more), at='end')


def history(run): return run.history.sort_values(['replica', 'split', 'step'])[['replica', 'step', 'loss', 'accuracy']]


def test_a_start_in_a_sweep_is_that_of_fit(tmp_path):
    exps = [moved(lr=lr) for lr in (.01, .03)]
    result = sweep(exps, store=tmp_path/'sweep', progress=False)
    for i, e in enumerate(exps):
        run = fit(e, tmp_path/'fit', progress=False)
        tables(history(result.run(i)), history(run))
        assert result.run(i).checkpoints == run.checkpoints
        for step in (0, e.steps): tensors(result.run(i).at(step).params, run.at(step).params, step)


def test_a_sweep_with_a_start_leaves_early(tmp_path):
    exp = moved(every=1)
    result = sweep([exp], store=tmp_path, stop=Stop('train accuracy >= .5'), progress=False)
    assert (result.frame.ended == 'met').all() and (result.frame.step < exp.steps).all()
    whole = history(fit(exp, tmp_path/'whole', progress=False))
    for r, step in zip(result.frame.replica, result.frame.step):
        part = history(result.run(0))
        tables(part[part.replica == r], whole[(whole.replica == r) & (whole.step <= step)])


@pytest.mark.parametrize('slots', [1, 3])
def test_events_keep_each_replica_as_it_was(tmp_path, slots):
    exps = [weak.but(lr=lr, keep_at=('train accuracy >= .5', 'test accuracy >= .3'), steps=120) for lr in (.02, .03)]
    result = sweep(exps, store=tmp_path/'sweep', stop=Stop('train accuracy >= .95'), slots=slots, progress=False)
    for i, e in enumerate(exps):
        run = fit(e, tmp_path/'fit', progress=False)
        tensors(*(r.at('train accuracy >= .5').params for r in (result.run(i), run)), i)


def test_a_chain_of_starts_goes_through_a_sweep(tmp_path):
    first = moved()
    then = first.but({'start': Continued(first), 'steps': 20})
    assert isinstance(then.model.embed, LowRank)
    result = sweep([then], store=tmp_path/'a', progress=False)
    tables(history(result.run(0)), history(fit(then, tmp_path/'b', progress=False)))


def test_replicas_share_one_copy_of_their_data():
    pool = full_pool(weak.but(seeds=5))
    assert pool.data['train'][0].dim() == 2 and len({s.data['train'][0].data_ptr() for s in pool.slots}) == 1
    apart = full_pool(weak.but(seeds=8, data_seed=(0, 1)*4))
    assert apart.sets['train'][0].shape[0] == 2 and len({s.data['train'][0].data_ptr() for s in apart.slots}) == 2
    assert apart.data['train'][0].shape[0] == 8


@pytest.mark.parametrize('more', [{}, dict(batch=13), dict(probes=(Norms(),), every=3)], ids=['full', 'batches', 'probes'])
def test_some_share_a_data_set_and_others_do_not(more, tmp_path):
    "Each as if it were alone, also when one of them leaves."
    exp = weak.but(seeds=5, data_seed=(4, 7, 4, 7, 7), steps=30, **more)
    run = fit(exp, tmp_path/'fit', progress=False)
    some = [exp.but(seeds=(s,), data_seed=d, steps=n) for s, d, n in zip(range(5), exp.data_seed, (30, 30, 12, 30, 30))]
    result = sweep(some, store=tmp_path/'sweep', slots=4, progress=False)
    for i in (0, 1, 3, 4):
        tensors(result.run(i).at().params, {k: v[i:i + 1] for k, v in run.at().params.items()}, i)
        tables(*(h.drop(columns='replica') for h in (history(result.run(i)), history(run)[history(run).replica == i])))


def test_a_lone_survivor_goes_on_as_in_company():
    "Neighbours that leave do not change who stays."
    def until(pool, most):
        for _ in pool.turns():
            if pool.taken >= most: break
        return pool
    short, long = weak.but(steps=10, seeds=3, lr=.02), weak.but(steps=40, seeds=1)
    both = until(Pool([(short, 0, None), (long, 0, None), (short, 1, None), (short, 2, None)], 3, Stop(None)), 10**9)
    alone = until(Pool([(long, 0, None)], 1, Stop(None)), 10**9)
    mine = next(s for s in both.done if s.exp == long)
    assert mine.steps == alone.done[0].steps
    agree(mine.rows, alone.done[0].rows)


stream = Experiment(Boolean(n=9, k=2, test=31), MLP(width=9, act='relu', bias='all'), SGD(.1), loss=Hinge(), batch=3, steps=23, seeds=2)


@pytest.mark.parametrize('slots', [1, 3, 4])
def test_neighbours_on_a_common_stream_may_leave(tmp_path, slots):
    exps = [stream.but(steps=9), stream.but(lr=.05), stream.but(lr=.3, seeds=3)]
    result = sweep(exps, store=tmp_path/'sweep', slots=slots, progress=False)
    assert result.failed.empty
    for i, e in enumerate(exps): same(result.run(i), fit(e, tmp_path/'fit', progress=False))


def test_fit_leaves_early_as_a_sweep_does(tmp_path):
    exp, stop = stream.but(seeds=6, steps=200, lr=.3), Stop('test accuracy >= .6')
    run, result = fit(exp, tmp_path/'fit', stop=stop, progress=False), sweep([exp], store=tmp_path/'sweep', stop=stop, progress=False)
    assert (result.frame.ended == 'generalised').all() and len(set(result.frame.step)) > 1
    assert not run.finished and not run.interrupted
    same(run, result.run(0))
    for i, step in enumerate(result.frame.step.astype(int)):             # the last weights of each, and not the first of all
        for k, v in run.at().params.items(): assert v[i].equal(run._of[i].weights(step)[k])
    assert fit(exp, tmp_path/'fit', stop=stop, progress=False).cached
    whole = fit(exp, tmp_path/'fit', progress=False)
    assert whole.finished and not whole.cached
    with pytest.raises(ValueError, match="stop='test' is not allowed"): fit(exp, tmp_path/'fit', stop='test')


def test_an_experiment_and_its_start_share_a_sweep(tmp_path):
    then = weak.but(start=Continued(weak), steps=20)
    result = sweep([then, weak, then.but(lr=.01)], store=tmp_path/'sweep', progress=False)
    assert result.failed.empty
    for i, e in enumerate([then, weak, then.but(lr=.01)]): same(result.run(i), fit(e, tmp_path/'fit', progress=False))


def test_a_start_that_fails_fails_alone(tmp_path):
    bad = weak.but(start=Continued(weak.but({'model.width': 8})), steps=20)
    good = weak.but(start=Continued(weak), steps=20)
    with pytest.warns(UserWarning, match='2 replicas could not be trained'): result = sweep([bad, good], store=tmp_path, progress=False)
    assert result.failed.number.tolist() == [0, 0] and result.run(1).finished


def test_a_sweep_that_is_stopped_while_a_start_trains_loses_nothing(tmp_path):
    exps = [moved(lr=lr) for lr in (.01, .03)]
    with listening(ask=lambda exp, step: 'stop' if exp == weak and step == 50 else ''):
        assert sweep([weak.but(lr=.01), *exps], store=tmp_path/'a', slots=1, commit_every=1000, progress=False).stopped
    assert open_run(weak.but(lr=.01), tmp_path/'a').finished
    assert open_run(exps[0].start.weak, tmp_path/'a').step == 50
    assert not sweep(exps, store=tmp_path/'a', progress=False).stopped
    for e in exps: same(open_run(e, tmp_path/'a'), fit(e, tmp_path/'b', progress=False))


def test_a_sweep_can_compile(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr('grok_nb.train.pool.Compiled', lambda model, params: asked.append(model) or seen(model, params))
    from grok_nb.models.bank import Bank as seen
    result = sweep([large.but(steps=3), large.but(steps=3, lr=.01)], store=tmp_path, compile=True, progress=False)
    assert asked and result.run(0).environment['compile'] and result.run(1).finished


class Late(SGD):
    "An optimiser of one's own, which counts its steps in Python."
    own_steps = False
    def update(self, params, grads, state, t, loss=None, rate=1.): super().update(params, grads, state, t, loss, rate/(1 + t))


@pytest.fixture
def recorder(monkeypatch):
    "Steps take the way of CUDA, where what is recorded knows tensors by their place, and nothing of Python any more; how often each of them was repeated."
    made, step = [], Pool.step
    def places(pool): return [v.data_ptr() for v in (pool.t, *pool.params.values(), *pool.opt.values())]
    def of(pool):
        def record(step, undo):
            for _ in range(3): step()
            undo()
            held, counts, number = places(pool), [s.step for s in pool.slots], len(made)
            made.append(0)
            def again():
                assert places(pool) == held
                made[number] += 1
                now = [s.step for s in pool.slots]
                for s, k in zip(pool.slots, counts): s.step = k
                step()
                for s, k in zip(pool.slots, now): s.step = k
            return again
        return record
    def pretended(pool):
        engine._examples(pool)                                           # a stream is begun on the device there is
        device, pool.device = pool.device, SimpleNamespace(type='cuda')
        try: step(pool)
        finally: pool.device = device
    monkeypatch.setattr(engine, 'Captured', lambda pool, x, y: Captured(pool, x, y, record=of(pool)))
    def on(): monkeypatch.setattr(Pool, 'step', pretended); return made
    return on


def outcome(exps, slots=4):
    pool = Pool([(e, i, None) for e in exps for i in range(len(e))], slots, Stop(None))
    for _ in pool.turns(): pass
    assert not pool.failed, pool.failed
    return {(s.exp.id, s.replica): (s.steps, s.rows, s.kept[-1][1]) for s in pool.done}


wide = stream.but(dtype='float64')
full = wide.but(task=ModularArithmetic(p=7, train_frac=.8), batch=None, optim=AdamW(.01), loss=weak.loss)
recorded = dict(full=full, batches=full.but(batch=5, data_seed='own'), stream=wide, streams=wide.but(data_seed='own'), momentum=full.but(optim=SGD(.1, momentum=.9)),
                muon=full.but(optim=Muon()), schedule=full.but(optim=chain(Cosine(20), SGD(.1))), filtered=full.but(optim=chain(Grokfast('ema'), AdamW(.01))))
plain = dict(window=full.but(optim=chain(Grokfast('ma', window=3), AdamW(.01))), noise=wide.but(optim=chain(LabelNoise(kind='flip'), SGD(.1))),
             scaled=full.but(optim=chain(NormScaled(5.), SGD(.1))), own=full.but(optim=Late(.1)))


@pytest.mark.parametrize('kind', [*recorded, *plain])
def test_recorded_steps_are_plain_steps(kind, recorder):
    "As long as the slots stay as they are; who leaves or sits down makes a step be recorded anew."
    exp = (recorded | plain)[kind]
    exps = [exp.but(steps=6, seeds=1), exp, exp.but(steps=17, seeds=(5, 6))]       # five on four slots; who leaves is followed at the next turn
    usual, made = outcome(exps), recorder()
    found = outcome(exps)
    assert found.keys() == usual.keys() and made == ([6, 1, 10, 6, 1] if kind in recorded else [])
    for k, (steps, rows, weights) in usual.items():
        assert found[k][0] == steps
        np.testing.assert_allclose(found[k][1], rows, rtol=1e-10, atol=1e-13)
        for n, w in weights.items(): torch.testing.assert_close(found[k][2][n], w, rtol=1e-9, atol=1e-12)


def test_what_cannot_be_recorded_is_stepped(recorder, monkeypatch):
    usual, made = outcome([full]), recorder()
    def broken(step, undo): step(); raise RuntimeError('no graph today')
    monkeypatch.setattr(engine, 'Captured', lambda pool, x, y: Captured(pool, x, y, record=broken))
    with pytest.warns(UserWarning, match='could not be captured .no graph today.; steps are taken one by one'): found = outcome([full])
    assert not made
    for k, (steps, rows, _) in usual.items(): assert (found[k][0], found[k][1]) == (steps, rows)


def test_threads_are_kept(tmp_path, monkeypatch):
    "Who goes on does so with as many threads as before, since another number rounds differently."
    exp, used = weak.but(steps=30), []
    def note(event): event.run or used.append(torch.get_num_threads())
    monkeypatch.setattr(Pool, 'threads', property(lambda self: 2))
    with listening(ask=lambda e, step: 'stop' if step == 10 else '', hear=note): fit(exp, tmp_path, progress=False)
    assert set(used) == {2} and open_run(exp, tmp_path).environment['threads'] == 2
    monkeypatch.setattr(Pool, 'threads', property(lambda self: 1))
    used.clear()
    with listening(note): run = fit(exp, tmp_path, progress=False)
    assert set(used) == {2} and [e['threads'] for e in run.environments] == [2, 2]
    with listening(note): fit(exp.but(lr=.02), tmp_path, progress=False)
    assert used[-1] == 1


def test_what_others_look_up_is_written_in_one_step(tmp_path, monkeypatch):
    store, seen = Store(tmp_path), []
    import grok_nb.train.store as module
    real = module.os.replace
    def replace(a, b):
        if str(b).endswith('claim.json'): seen.append(Store(tmp_path).held())
        real(a, b)
    monkeypatch.setattr(module.os, 'replace', replace)
    segment, own, lock = store.claim('mine', ['a', 'b'])
    assert seen == [{}] and set(store.held()) == {'a', 'b'}
    store.release(segment, lock)


def test_folding_keeps_the_last_state(tmp_path, monkeypatch):
    "Also where an earlier one of the same replica was left behind by a process that was killed."
    store = Store(tmp_path)
    with monkeypatch.context() as m:
        m.setattr(loop, '_tidy', lambda *_: None)
        for n in (20, 40): fit(weak.but(steps=n), store, progress=False)
        fit(weak.but(lr=.01, steps=5), store, progress=False)
    store.fold(2)
    taken, real = [], loop.Pool.step
    monkeypatch.setattr(loop.Pool, 'step', lambda self: taken.append(len(self)) or real(self))
    fit(weak.but(steps=60), store, progress=False)
    assert sum(taken) == 40


def test_what_probes_say_of_others_does_not_come_along(tmp_path):
    "Segments of experiments with different probes are folded into one, and one of them goes on."
    store, plain, probed = Store(tmp_path/'many'), weak.but(steps=20), weak.but(steps=20, lr=.01, probes=(Norms(),))
    for e in (plain, probed): fit(e, store, progress=False)
    store.fold(2)
    assert len(store.segments()) == 1
    for e in (plain.but(steps=40), probed.but(steps=40)): same(fit(e, store, progress=False), fit(e, tmp_path/e.id, progress=False))
    assert len(runs(store)) == 4 and len(index(store)) == 8
    assert list(open_run(probed, store).probes) == list(fit(probed, tmp_path/'alone', progress=False).probes)
    assert not any(k.startswith('probe.') for k in open_run(plain, store)._of[0].past())

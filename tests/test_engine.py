"""Whatever `fit` can do a sweep can: a start, weights at events, early leaving, and all of them together"""
import numpy as np
import pytest

from grok_nb.all import AdamW, Continued, Experiment, Free, LowRank, MLP, ModularArithmetic, Stop, fit, sweep, transfer
from grok_nb.train.pool import Pool, seated

weak = Experiment(ModularArithmetic(p=11, train_frac=.8), MLP(width=32, embed=Free(6)), AdamW(lr=.03, wd=1.), steps=150, seeds=2)
large = weak.but({'model.embed': Free(9), 'steps': 60})


def moved(**more): return transfer(weak, large.but(**more), at='end')


def history(run): return run.history.sort_values(['replica', 'split', 'step'])[['replica', 'step', 'loss', 'accuracy']].to_numpy(float)


def test_a_start_in_a_sweep_is_that_of_fit(tmp_path):
    exps = [moved(lr=lr) for lr in (.01, .03)]
    result = sweep(exps, store=tmp_path/'sweep', progress=False)
    for i, e in enumerate(exps):
        run = fit(e, tmp_path/'fit', progress=False)
        np.testing.assert_array_equal(history(result.run(i)), history(run))
        assert result.run(i).checkpoints == run.checkpoints
        for step in (0, e.steps):
            for k, v in run.at(step).params.items(): np.testing.assert_array_equal(result.run(i).at(step).params[k].numpy(), v.numpy())


def test_a_sweep_with_a_start_leaves_early(tmp_path):
    exp = moved(every=1)
    result = sweep([exp], store=tmp_path, stop=Stop('train accuracy >= .5'), progress=False)
    assert (result.frame.ended == 'generalised').all() and (result.frame.step < exp.steps).all()
    whole = history(fit(exp, tmp_path/'whole', progress=False))
    for r, step in zip(result.frame.replica, result.frame.step):
        part = history(result.run(0))
        np.testing.assert_array_equal(part[part[:, 0] == r], whole[(whole[:, 0] == r) & (whole[:, 1] <= step)])


@pytest.mark.parametrize('places', [1, 3])
def test_events_keep_each_replica_as_it_was(tmp_path, places):
    exps = [weak.but(lr=lr, keep_at=('train accuracy >= .5', 'test accuracy >= .3'), steps=120) for lr in (.02, .03)]
    result = sweep(exps, store=tmp_path/'sweep', stop=Stop('train accuracy >= .95'), places=places, progress=False)
    for i, e in enumerate(exps):
        run = fit(e, tmp_path/'fit', progress=False)
        for k, v in run.at('train accuracy >= .5').params.items():
            np.testing.assert_array_equal(result.run(i).at('train accuracy >= .5').params[k].numpy(), v.numpy())


def test_a_chain_of_starts_goes_through_a_sweep(tmp_path):
    first = moved()
    then = first.but({'start': Continued(first), 'steps': 20})
    assert isinstance(then.model.embed, LowRank)
    result = sweep([then], store=tmp_path/'a', progress=False)
    np.testing.assert_array_equal(history(result.run(0)), history(fit(then, tmp_path/'b', progress=False)))


def test_replicas_share_one_copy_of_their_data():
    pool = seated(weak.but(seeds=5))
    assert pool.data['train'][0].dim() == 2 and len({s.data['train'][0].data_ptr() for s in pool.seats}) == 1
    apart = seated(weak.but(seeds=3, data_seed=(0, 1, 1)))
    assert apart.data['train'][0].dim() == 3


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
    assert mine.rows == alone.done[0].rows

"A replica is trained once, whoever asks for it and in whatever order: by `fit` and `sweep`, at the same time, longer, with more seeds, killed."
import itertools
import os
from concurrent.futures import ProcessPoolExecutor

import pytest
from conftest import children
from grok_nb.all import AdamW, Experiment, Free, MLP, ModularArithmetic, Stop, Store, fit, open_run, sweep, transfer
from grok_nb.tasks.config import lengths, paths
from grok_nb.train import fit as fits, shard as shards
from grok_nb.train.events import listening
from grok_nb.train.experiment import replica_ids
from grok_nb.train.record import find
from grok_nb.train.runs import index
from same import left_behind, same, tables, tensors
from test_arithmetic import KINDS, three_rates
from waiting import LIMIT, forked, until

how = dict(device='cpu', progress=False)
base = Experiment(ModularArithmetic(p=7, train_frac=.6), MLP(width=8), AdamW(lr=.01), steps=300, seeds=4)


@pytest.fixture
def steps(monkeypatch):
    "The number of steps that `fit` and `sweep` have taken in this process, as a list of what each of them took."
    out, real = [], fits.train_replicas
    def counted(*args, **kw):
        said = real(*args, **kw)
        out.append(said['taken'])
        return said
    for m in (fits, shards): monkeypatch.setattr(m, 'train_replicas', counted)
    return out


def under_way(exps, store):
    "Steps of the replicas of some experiments that are on disk."
    return sum(r.step for r in find(Store(store), [*{k for e in exps for k in replica_ids(e)}]).values())


# --- the same by every way -----------------------------------------------------------------------------------------

ALL = bool(os.environ.get('GROK_NB_KILL'))           # as `make test-kill` sets it: every kind, some of them in every order; else some of both
some = 'square', 'transformer', 'muon', 'own_data', 'ema', 'log_loss'
various = *some, 'momentum', 'stream', 'double', 'probed', 'ma', 'cosine', 'noisy'


def orders(ways, kind):
    "All of them; or three, in one of which `fit` comes before the sweep, and in one after it."
    every = list(itertools.permutations(ways))
    return every if kind == 'square' or ALL and kind in various else every[::11]


def three(exp):
    "An experiment with a third seed, and with a third value of what varies."
    return exp.but({k: (*v, v[0]) for k, v in paths(exp).items() if k in lengths(exp)} | dict(seeds=3))


@pytest.mark.parametrize('kind', KINDS if ALL else some)
def test_one_store_one_result_by_every_way_in_every_order(kind, tmp_path, steps):
    slow, exp = three_rates(KINDS[kind])[:2]
    more, part = three(exp), exp.but(seeds=(1, 2))
    ways = dict(fit=lambda s: fit(exp, s, **how), sweep=lambda s: sweep([slow, exp], store=s, slots=3, **how),
                more=lambda s: fit(more, s, **how), part=lambda s: sweep([part], store=s, slots=1, **how))
    every = {e.id: e for e in (slow, exp, more, part)}
    apart = {k: fit(e, tmp_path/k, **how) for k, e in every.items()}
    once = exp.steps*len({k for e in every.values() for k in replica_ids(e)})
    for i, order in enumerate(orders(ways, kind)):
        steps.clear()
        for name in order: ways[name](tmp_path/str(i))
        assert sum(steps) == once, order                                     # nothing was trained twice
        for k, e in every.items(): same(open_run(e, tmp_path/str(i)), apart[k])
        assert fit(exp, tmp_path/str(i), **how).cached and sum(steps) == once


def test_a_rule_for_leaving_with_a_start_and_with_events(tmp_path, steps):
    weak = base.but({'model.embed': Free(3), 'steps': 60, 'seeds': 2})
    exps = [transfer(weak, weak.but({'model.embed': Free(5), 'lr': lr, 'steps': 150, 'keep_at': ('train >= .3', 'train >= .9')}), at='end') for lr in (.02, .05)]
    rule = Stop('train accuracy >= .5')
    whole = [fit(e, tmp_path/'whole', **how) for e in exps]
    for slots in (1, 4):
        store = tmp_path/str(slots)
        steps.clear()
        result = sweep(exps, store=store, stop=rule, slots=slots, **how)
        assert (result.frame.ended == 'met').all() and (result.frame.step < 150).all()
        for k, e in enumerate(exps):
            part, h = result.run(k), whole[k].history
            left = result.frame.step[result.frame.number == k].to_numpy()
            seen = h[h.step <= left[h.replica]].reset_index(drop=True)       # each replica until it left
            tables(part.history, seen)
            assert part.checkpoints[0] == 0 and not part.finished
            for step in (0, 'train >= .3'): tensors(whole[k].at(step).params, part.at(step).params, (k, step))
        assert sweep(exps, store=store, stop=rule, slots=slots, **how).taken == 0
        done = [fit(e, store, **how) for e in exps]                          # without the rule they go on
        for a, b in zip(done, whole): same(a, b)
        assert sum(steps) == 60*2 + 150*4                                    # the weak ones, and each of the others once


# --- at the same time ----------------------------------------------------------------------------------------------

def _sweeps(exps, store, gate, out):
    gate.wait()
    out.put(sweep(exps, store=store, commit_every=0, **how).taken)


def test_two_sweeps_at_the_same_time_share_what_both_ask_for(tmp_path):
    exps = [base.but(lr=lr, steps=40) for lr in (.01, .02, .03, .04)]
    gate, out = children.Barrier(2), children.Queue()
    both = [children.Process(target=_sweeps, args=(some, str(tmp_path/'both'), gate, out), daemon=True) for some in (exps[:3], exps[1:])]
    for p in both: p.start()
    taken = [out.get(timeout=LIMIT) for _ in both]
    for p in both: p.join(LIMIT)
    assert sum(taken) == 4*4*40, taken                                      # each replica once, in one of the two
    alone = sweep(exps, store=tmp_path/'alone', **how)
    for k, e in enumerate(exps): same(open_run(e, tmp_path/'both'), alone.run(k))
    assert left_behind(tmp_path/'both') == []


def _in_company(do, shard, store, **how):
    "Train a shard, once another one is claimed as well."
    def claimed(): return [n for n in os.listdir(Store(store).root) if n[0] != '.']
    def ask(): return until(lambda: len(claimed()) > 1, 'somebody claims the other seeds') and ''
    return do(shard, store, ask=ask, **how)


class Together:
    "An executor whose workers begin when each has a shard."
    def __init__(self, executor): self.executor = executor
    def submit(self, *args, **kw): return self.executor.submit(_in_company, *args, **kw)


def test_seeds_of_one_experiment_are_trained_side_by_side_by_several_workers(tmp_path):
    exp = base.but(seeds=8, steps=40)
    with ProcessPoolExecutor(2, mp_context=children) as pool: result = sweep([exp], Together(pool), store=tmp_path/'many', slots=1, **how)
    run, found = result.run(0), find(Store(tmp_path/'many'), list(replica_ids(exp)))
    assert len({e['pid'] for e in run.environments} - {os.getpid()}) == 2
    assert [len(r.sources) for r in found.values()] == [1]*8 and result.taken == 8*40      # each by one of them, and each step once
    same(run, fit(exp, tmp_path/'alone', **how))
    assert left_behind(tmp_path/'many') == []


# --- longer, and more of them --------------------------------------------------------------------------------------

def _fits(exp, store):
    "A commit at every step; after fifty it waits to be killed."
    steps = itertools.count()
    with listening(ask=lambda e, step: 'hold' if next(steps) >= 50 else ''): fit(exp, store, commit_every=0, **how)


def killed(exp, store):
    "Train, and kill it when some new steps are on disk, but not all."
    before = under_way([exp], store)
    with forked(_fits, exp, str(store)) as p:
        until(lambda: under_way([exp], store) > before or p.exitcode is not None, 'new steps are on disk', every=.005)
        assert p.exitcode is None, 'it ended before it was killed'
        p.kill()
        p.join(LIMIT)


long, wide = dict(steps=600), dict(seeds=8)
wanted = {'longer': [long], 'more': [wide], 'longer, then more': [long, long | wide], 'more, then longer': [wide, long | wide], 'both at once': [long | wide]}
cases = [(name, kill) for name in wanted for kill in (False, True) if ALL or kill == (name != 'more')]


@pytest.mark.skipif(os.name == 'nt', reason='needs SIGKILL')
@pytest.mark.parametrize('name, kill', cases, ids=[name + ', killed'*kill for name, kill in cases])
def test_longer_runs_and_more_seeds_go_on_from_what_there_is(name, kill, tmp_path, steps):
    wants = wanted[name]
    first, last = fit(base, tmp_path/'a', **how), base.but(**wants[-1])
    assert sum(steps) == 4*300
    for w in wants:
        if kill: killed(base.but(**w), tmp_path/'a')
        before = under_way([base.but(**w)], tmp_path/'a')
        steps.clear()
        run = fit(base.but(**w), tmp_path/'a', **how)
        assert before + sum(steps) == len(run.config)*run.config.steps       # from where they were, and no further
    whole = fit(last, tmp_path/'b', **how)
    same(run, whole)
    same(open_run(base, tmp_path/'a'), first)                                # what was there says what it said
    h, common = whole.history, first.history.step.isin(whole.history.step)
    mine = h[(h.replica < 4) & h.step.isin(first.history.step)]
    tables(first.history[common], mine)
    assert len(run.environments) == 1 + len(wants)*(1 + kill)                # of every start
    Store(tmp_path/'a').fold(2)
    assert len(open_run(last, tmp_path/'a').environments) == len(run.environments) and len(Store(tmp_path/'a').segments()) == 1
    same(open_run(last, tmp_path/'a'), whole)
    assert left_behind(tmp_path/'a') == [] and index(tmp_path/'a').finished.all()

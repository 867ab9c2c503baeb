"To delete runs, and what else happens beside training: other deleters, listers and folders that nobody may read."
import itertools
import os
import time
import warnings
from contextlib import contextmanager

import pytest
from conftest import children, like_anybody, segment_of
from grok_nb.all import AdamW, Experiment, MLP, ModularArithmetic, Store, StoreError, fit, open_run, runs, sweep
from grok_nb.train import fold
from grok_nb.train.record import contents
from grok_nb.train.runs import index, survey
from same import left_behind, same
from waiting import LIMIT, tries

how = dict(device='cpu', progress=False)
tiny = Experiment(ModularArithmetic(p=7, train_frac=.6), MLP(width=4), AdamW(lr=.01), steps=20, seeds=2)
grid = [tiny.but(lr=lr) for lr in (.01, .02, .03, .04)]


def apart(tmp_path): return [fit(e, tmp_path/'apart', **how) for e in grid]


@pytest.mark.parametrize('which', range(4))
def test_one_run_of_a_sweep_can_go_and_the_others_stay(which, tmp_path):
    whole, store = apart(tmp_path), Store(tmp_path/'store')
    sweep(grid, store=store, **how)
    before = store.bytes()
    store.rename(grid[which].id, 'mine')
    assert store.remove(grid[which].id) > 0
    assert set(runs(store).id) == {e.id for e in grid} - {grid[which].id} and store.names() == {}
    for e, w in zip(grid, whole):
        if e != grid[which]: same(open_run(e, store), w)
    with pytest.raises(StoreError, match='there is no run'): open_run(grid[which], store)
    with pytest.raises(StoreError, match='there is no run'): store.remove(grid[which].id)
    same(fit(grid[which], store, **how), whole[which])                       # and it can come back
    for e in grid: store.remove(e.id)
    assert not len(runs(store)) and store.bytes() < before/4 and not store.segments()


def test_what_two_runs_share_goes_with_the_last_of_them(tmp_path):
    store, more = Store(tmp_path), tiny.but(seeds=3)
    fit(tiny, store, **how)
    fit(more, store, **how)
    store.remove(tiny.id)
    assert fit(more, store, **how).cached and runs(store).id.tolist() == [more.id]
    store.remove(more.id)
    assert not len(runs(store)) and not fit(tiny, store, **how).cached


def test_what_is_being_trained_is_refused_and_the_rest_is_not(tmp_path):
    from grok_nb.train.events import listening
    store, said = Store(tmp_path), []
    fit(grid[1], store, **how)
    def ask(e, step):
        if step == 10 and not said:
            with pytest.raises(StoreError, match=f'{tiny.id} is being trained: stop it first'): store.remove(tiny.id)
            said.append((store.busy(tiny.id), store.busy(grid[1].id), store.remove(grid[1].id)))
        return ''
    with listening(ask=ask): run = fit(tiny, store, commit_every=0, **how)
    assert run.finished and said[0][:2] == (True, False) and said[0][2] > 0 and runs(store).id.tolist() == [tiny.id]


# --- all at the same time ------------------------------------------------------------------------------------------

sentences = 'there is no run', 'is being trained', 'no measurements yet', 'its run was removed'   # all true of what others remove meanwhile


MINUTE = 60*bool(os.environ.get('GROK_NB_KILL'))     # under `make test-kill` for a minute, else as often as it says


def _attempt(do, times, at_work, out):
    "Do something many times, or as long as trainers are at work; what it says of itself, where that is not a sentence of the store's, goes to a queue."
    wrong = []
    warnings.simplefilter('error')                                           # what is being removed is not damaged, and nobody may say so
    for i in tries(times, MINUTE) if times else itertools.takewhile(lambda i: at_work.value, itertools.count()):
        try: do(i)
        except StoreError as e:
            if not any(t in str(e) for t in sentences): wrong.append(f'StoreError: {e}')
        except BaseException as e: wrong.append(f'{type(e).__name__}: {e}')
        if not times: time.sleep(.05)                                        # or they would leave the lock of the store to nobody else
    if times:
        with at_work: at_work.value -= 1
    out.put(wrong)


def _trains(store, some): return lambda i: fit(grid[some[i % len(some)]], store, commit_every=0, **how)
def _sweeps(store, some): return lambda i: sweep([grid[k] for k in some], store=store, commit_every=0, **how)
def _removes(store, some): return lambda i: Store(store).remove(grid[some[i % len(some)]].id)
def _renames(store, some): return lambda i: Store(store).rename(grid[some[i//3 % len(some)]].id, f'run {i}'*(i % 3 > 0))
def _folds(store, some): return lambda i: Store(store).fold(2)


def _lists(store, some):
    def look(i):
        try: runs(store), survey(store), index(store), Store(store).bytes(), repr(Store(store))
        except StoreError as e: raise AssertionError(f'a list raised: {e}') from e
        assert len(open_run(grid[i % len(grid)], store).history)
    return look


def _in_company(do, store, some, *how_long): _attempt(do(store, some), *how_long)


company = dict(beside=[(_trains, [0, 1], 4), (_trains, [1, 0], 4), (_removes, [0], 0), (_removes, [1, 0], 0), (_renames, [0, 1], 0), (_lists, [], 0)],
               folded=[(_sweeps, [0, 1, 2], 4), (_trains, [3, 1], 4), (_removes, [1, 3], 0), (_folds, [], 0), (_renames, [0, 1, 2, 3], 0), (_lists, [], 0)])


@pytest.mark.skipif(os.name == 'nt', reason='a file that is open cannot be removed there')
@pytest.mark.parametrize('who', company.values(), ids=list(company))
def test_trainers_deleters_and_listers_do_not_disturb_each_other(who, tmp_path):
    store, out, at_work = tmp_path/'store', children.Queue(), children.Value('i', sum(times > 0 for *_, times in who))
    all = [children.Process(target=_in_company, args=(do, str(store), some, times, at_work, out), daemon=True) for do, some, times in who]
    for p in all: p.start()
    said = [out.get(timeout=LIMIT) for _ in all]
    for p in all: p.join(LIMIT)
    assert said == [[]]*len(all)
    assert set(Store(store).names()) <= {i for c in contents(Store(store)) for i in c.ids}       # a name goes with its run
    whole = apart(tmp_path)
    for e, w in zip(grid, whole): same(fit(e, store, **how), w)
    assert left_behind(store) == []


def test_a_run_that_is_removed_while_it_waits_for_its_name_gets_none(tmp_path, monkeypatch):
    store, real = Store(tmp_path), fold._alone
    fit(tiny, store, **how)
    @contextmanager
    def late(self):
        monkeypatch.setattr(fold, '_alone', real)
        store.remove(tiny.id)                                                # just before it has the lock
        with real(self): yield
    monkeypatch.setattr(fold, '_alone', late)
    with pytest.raises(StoreError, match='there is no run'): store.rename(tiny.id, 'mine')
    assert store.names() == {}


# --- what cannot be read -------------------------------------------------------------------------------------------

@pytest.mark.parametrize('kind', ['run', 'pack'])
def test_a_store_of_an_earlier_version_is_refused_and_not_touched(kind, tmp_path, picture):
    from grok_nb.lab.cli import main
    from grok_nb.lab.jobs import Spare, jobs, start
    from grok_nb.lab.page import Laboratory
    folder = tmp_path/(tiny.id if kind == 'run' else 'packs/0123456789abcdef')
    folder.mkdir(parents=True)
    for name in ('config.json', 'manifest.json', 'bank.0.safetensors'): (folder/name).write_text('{}')
    before = picture(tmp_path)
    def refused(do):
        with pytest.raises(StoreError, match='holds runs of an earlier version of grok_nb.*Nothing in it was touched'): do(tmp_path)
    for do in (runs, index, survey, lambda s: fit(tiny, s, **how), lambda s: sweep([tiny], store=s, **how), lambda s: open_run(tiny, s),
               lambda s: Store(s).remove(tiny.id), lambda s: Store(s).segments(), Laboratory, jobs, lambda s: start([tiny], s),
               lambda s: Spare(s).warm(), runs): refused(do)
    with pytest.raises(SystemExit): main(['list', '--store', str(tmp_path)])
    assert picture(tmp_path) == before and [f.name for f in tmp_path.iterdir()] == [folder.relative_to(tmp_path).parts[0]]


def closed(path, mode, do):
    "Do something while a folder has these permissions."
    path.chmod(mode)
    try:
        with like_anybody(): return do()
    finally: path.chmod(0o755)


def test_folders_without_permission_are_said(tmp_path):
    store = Store(tmp_path)
    for e in grid[:2]: fit(e, store, **how)
    one = segment_of(tmp_path, grid[0])
    with pytest.raises(StoreError, match=r'cannot be (used|read) \(Permission denied'): closed(store.root, 0o000, lambda: runs(tmp_path))
    with pytest.raises(StoreError, match='cannot be (written|removed)'): closed(store.root, 0o555, lambda: store.remove(grid[0].id))
    with pytest.warns(UserWarning, match=f'{grid[0].id}'): assert closed(one, 0o000, lambda: runs(tmp_path)).id.tolist() == [grid[1].id]
    for do in (lambda: fit(grid[0], tmp_path, **how), lambda: sweep(grid[:2], store=tmp_path, **how), lambda: open_run(grid[0], tmp_path),
               lambda: open_run(grid[0].id, tmp_path), lambda: store.remove(grid[0].id)):
        with pytest.raises(StoreError, match=f'{grid[0].id}.*cannot be (read|removed) .*Permission denied'): closed(one, 0o000, do)
    assert set(runs(tmp_path).id) == {e.id for e in grid[:2]}
    assert fit(grid[0], tmp_path, **how).cached                                         # nothing of it was touched


@pytest.mark.parametrize('mode', [0o000, 0o444])
def test_names_without_permission_are_said(mode, tmp_path):
    store = Store(tmp_path)
    for e in grid[:2]: fit(e, store, **how), store.rename(e.id, f'at {e.optim.lr}')
    names, run = tmp_path/'names', open_run(grid[0], store)
    with pytest.warns(UserWarning) as said: assert closed(names, mode, lambda: runs(tmp_path)).name.tolist() == ['', '']
    assert [str(w.message) for w in said] == [f'runs: left out of the list: names of runs in {names} cannot be read (Permission denied)']
    with pytest.warns(UserWarning, match='a part of the store was left out: names of runs in .* cannot be read'): assert closed(names, mode, lambda: run.name) == ''
    assert grid[0].id in closed(names, mode, lambda: repr(run))                         # and not again
    with pytest.raises(StoreError, match='cannot be written .Permission denied., so the run was not named'): closed(names, mode, lambda: run.rename('mine'))
    assert set(runs(tmp_path).name) == {'at 0.01', 'at 0.02'}
    with pytest.warns(UserWarning, match=f'{grid[0].id} was removed; its name, if it has one, was not'): closed(names, mode, lambda: store.remove(grid[0].id))
    assert runs(tmp_path).id.tolist() == [grid[1].id]

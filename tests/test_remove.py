"To delete runs, and what else happens beside training: other deleters, listers and folders that nobody may read."
import os
import warnings

import pytest
from conftest import children, like_anybody, segment_of
from grok_nb.all import AdamW, Experiment, MLP, ModularArithmetic, Store, StoreError, fit, open_run, runs, sweep
from grok_nb.train.run import index, survey
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
    from grok_nb.train.events import watching
    store, said = Store(tmp_path), []
    fit(grid[1], store, **how)
    def ask(e, step):
        if step == 10 and not said:
            with pytest.raises(StoreError, match=f'{tiny.id} is being trained: stop it first'): store.remove(tiny.id)
            said.append((store.busy(tiny.id), store.busy(grid[1].id), store.remove(grid[1].id)))
        return ''
    with watching(ask=ask): run = fit(tiny, store, snapshot=0, **how)
    assert run.finished and said[0][:2] == (True, False) and said[0][2] > 0 and runs(store).id.tolist() == [tiny.id]


# --- all at the same time ------------------------------------------------------------------------------------------

sentences = 'there is no run', 'is being trained', 'no measurements yet', 'its run was removed'   # all true of what others remove meanwhile


MINUTE = 60*bool(os.environ.get('GROK_NB_KILL'))     # under `make test-kill` for a minute, else as often as it says


def _attempt(out, do, times):
    "Do something many times; what it says of itself, where that is not a sentence of the store's, goes to a queue."
    wrong = []
    warnings.simplefilter('error')                                           # what is being removed is not damaged, and nobody may say so
    for i in tries(times, MINUTE):
        try: do(i)
        except StoreError as e:
            if not any(t in str(e) for t in sentences): wrong.append(f'StoreError: {e}')
        except BaseException as e: wrong.append(f'{type(e).__name__}: {e}')
    out.put(wrong)


def _trains(store, some, times, out): _attempt(out, lambda i: fit(grid[some[i % len(some)]], store, snapshot=0, **how), times)
def _sweeps(store, some, times, out): _attempt(out, lambda i: sweep([grid[k] for k in some], store=store, snapshot=0, **how), times)
def _removes(store, some, times, out): _attempt(out, lambda i: Store(store).remove(grid[some[i % len(some)]].id), times)
def _folds(store, some, times, out): _attempt(out, lambda i: Store(store).fold(2), times)


def _lists(store, some, times, out):
    def look(i):
        try: runs(store), survey(store), index(store), Store(store).bytes(), repr(Store(store))
        except StoreError as e: raise AssertionError(f'a list raised: {e}') from e
        assert len(open_run(grid[i % len(grid)], store).history)
    _attempt(out, look, times)


company = dict(beside=[(_trains, [0, 1], 12), (_trains, [1, 0], 12), (_removes, [0], 60), (_removes, [1, 0], 60), (_lists, [], 60)],
               folded=[(_sweeps, [0, 1, 2], 8), (_trains, [3, 1], 12), (_removes, [1, 3], 60), (_folds, [], 60), (_lists, [], 60)])


@pytest.mark.skipif(os.name == 'nt', reason='a file that is open cannot be removed there')
@pytest.mark.parametrize('who', company.values(), ids=list(company))
def test_trainers_deleters_and_listers_do_not_disturb_each_other(who, tmp_path):
    store, out = tmp_path/'store', children.Queue()
    all = [children.Process(target=do, args=(str(store), some, times, out), daemon=True) for do, some, times in who]
    for p in all: p.start()
    said = [out.get(timeout=LIMIT) for _ in all]
    for p in all: p.join(LIMIT)
    assert said == [[]]*len(all)
    whole = apart(tmp_path)
    for e, w in zip(grid, whole): same(fit(e, store, **how), w)
    assert left_behind(store) == []


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

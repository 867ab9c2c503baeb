"A run whose loss is no longer finite says so: fit, timeline, the list, the report and the command line."
import warnings

import pandas as pd
import pytest
from grok_nb.all import AdamW, Experiment, MLP, ModularArithmetic, Stop, Transformer, fit, open_run, report, runs, sweep
from grok_nb.lab.cli import main

base = Experiment(ModularArithmetic(p=7, train_frac=.6), MLP(width=8), AdamW(lr=.01), steps=20, seeds=3, keep=0)
wild = {'rate': base.but(lr=1e6), 'eps': base.but(optim=AdamW(eps=0.)),
        'deep': base.but(model=Transformer(depth=200, d=8, heads=1, mlp=4), steps=1, seeds=2),
        'one': base.but(lr=(.01, 1e30, .01))}


def warned(exp, store):
    "A run, and the warnings that came with it."
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter('always')
        run = fit(exp, store, device='cpu')
    return run, [str(w.message) for w in said if 'diverged' in str(w.message)]


def by_hand(run):
    "replica -> the first step at which its training loss is not finite."
    h = run.history[run.history.split == 'train']
    return {r: int(t.step[~t.loss.abs().lt(float('inf'))].min()) for r,t in h.groupby('replica') if not abs(t.loss.iloc[-1]) < float('inf')}


@pytest.mark.parametrize('exp', wild.values(), ids=wild)
def test_all_five_say_it_with_the_step_and_the_replicas(exp, tmp_path, capsys):
    run, said = warned(exp, tmp_path/'s')
    lost, n = by_hand(run), len(exp)
    assert run.finished and lost and said and said == warned(exp, tmp_path/'s')[1]            # from the store as well, once each time
    text = said[0].removeprefix('fit: ')
    assert text.startswith(f'{len(lost)} of {n} replicas diverged') and f'from step {min(lost.values())}' in text
    assert (len(lost) == n) != ('(replica 1)' in text)
    t = run.timeline().set_index('replica').diverged
    assert t.dropna().to_dict() == lost == run.diverged
    assert runs(tmp_path/'s').diverged.tolist() == [text]
    assert f'<strong>{text}.</strong>' in report(run, tmp_path/'out')['report'].read_text(encoding='utf-8')
    main_(['list', '--store', str(tmp_path/'s')])
    assert capsys.readouterr().out.splitlines()[-1].endswith(f'; {text}')


def main_(args):
    with pytest.raises(SystemExit) as e: main(args)
    assert not e.value.code


def test_the_command_line_says_it_on_standard_error_once(tmp_path, capsys):
    words = ['run', 'modular-addition', '--set', 'p=7', '--set', 'lr=[0.01,1e30]', '--steps', '5', '--seeds', '2', '--store', str(tmp_path)]
    for _ in range(2):                                                    # trained, then found
        with warnings.catch_warnings():
            warnings.filterwarnings('error', '.*diverged')
            main_(words)
        told = [line for line in capsys.readouterr().err.splitlines() if 'diverged' in line]
        assert told == ['grok-nb: 1 of 2 replicas diverged: the training loss is not finite from step 1 (replica 1)']


def test_a_run_that_is_well_says_nothing_and_its_neighbours_do_not_matter(tmp_path):
    well, said = warned(base, tmp_path/'well')
    assert not said and well.diverged == {} and 'diverged' not in well.timeline() and runs(tmp_path/'well').diverged.tolist() == ['']
    one = warned(wild['one'], tmp_path/'one')[0]
    a, b = (r.history.query('replica != 1').reset_index(drop=True) for r in (well, one))
    pd.testing.assert_frame_equal(a, b, rtol=1e-3, atol=1e-3)


def test_a_run_that_shares_replicas_with_one_that_diverged_says_what_it_sees_of_them(tmp_path):
    run, said = warned(wild['one'], tmp_path)
    well = warned(base.but(seeds=(0, 2)), tmp_path)                                   # the two that are well, from the store
    assert well[0].cached and not well[1] and well[0].diverged == {}
    rate = wild['rate'].but(keep=tuple(range(1, 20)))
    late, told = warned(rate, tmp_path)
    before = min(late.diverged.values()) - 1
    early, quiet = warned(rate.but(steps=before), tmp_path)
    assert before > 0 and early.cached and not quiet and early.diverged == {}
    t = runs(tmp_path).set_index('id').diverged
    assert t[run.id] == said[0].removeprefix('fit: ') and t[late.id] == told[0].removeprefix('fit: ') and t[early.id] == t[well[0].id] == ''


@pytest.mark.parametrize('stop', [Stop(None), Stop(None, diverged=False)], ids=['leaves', 'stays'])
def test_a_sweep_says_it(stop, tmp_path):
    exp = wild['one']
    result = sweep([exp], store=tmp_path, stop=stop, device='cpu', progress=False)
    run = open_run(exp, tmp_path)
    assert result.frame.ended.tolist() == ['finished', 'diverged', 'finished'] and '1 diverged' in repr(result)
    assert run.diverged == by_hand(run) == {1: 1} and run.finished == (not stop.diverged)
    assert runs(tmp_path).diverged.tolist() == ['1 of 3 replicas diverged: the training loss is not finite from step 1 (replica 1)']

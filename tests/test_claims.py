"The ledger at work: interrupts, kills, the committed verdicts, and the papers' own sizes."
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from grok_nb.papers.dichotomy_addition import decay_sweep, starts
from grok_nb.papers.dichotomy_noise import at_rate, noisy, rates
from grok_nb.papers.ledger import claims, known_claims, load_chapters, settings
from grok_nb.papers.predict import shape_check
from grok_nb.papers.reproduce import read_claims
from grok_nb.tasks.config import from_dict, to_dict
from grok_nb.train.presets import preset

ROOT = Path(__file__).resolve().parent.parent
KEPT = ROOT/'nbs/papers/claims'

load_chapters()

TRIAL = '''
import os, time
from grok_nb.papers.ledger import Evidence, claim
from grok_nb.train.fit import fit
from grok_nb.train.presets import preset

exp = preset('parity').but(steps=15_000, keep=0, n=20, width=16, seeds=2)

def note(name):
    with open(os.path.join(os.path.dirname(__file__), 'calls'), 'a') as f: f.write(name + '\\n')

@claim('trial:1-quick', says='it is quick')
def _(at):
    note('quick')
    return Evidence(dict(one=1), holds=True)

@claim('trial:2-long', says='it is long')
def _(at):
    note('long')
    run = fit(exp, snapshot=.2)
    return Evidence(dict(step=run.step), holds=run.finished)
'''


@pytest.fixture
def trial(tmp_path):
    (tmp_path/'trial_claims.py').write_text(TRIAL)
    return tmp_path


def command(folder, *words):
    "`grok-nb reproduce` on the trial claims, in a process group of its own"
    env = os.environ | dict(PYTHONPATH=f'{folder}{os.pathsep}{ROOT}', GROK_NB_STORE=str(folder/'store'), OMP_NUM_THREADS='1')
    words = (sys.executable, '-c', 'from grok_nb.lab.cli import main; main()', 'reproduce', 'trial:*', '--scale', 'smoke', '--out', str(folder/'out'), '--module', 'trial_claims', *words)
    return subprocess.Popen(words, env=env, cwd=folder, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
                            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler))


def wait_until(true, seconds=120):
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, 'waited too long'
        time.sleep(.05)


def calls(folder): return (folder/'calls').read_text().split() if (folder/'calls').exists() else []


def in_training(folder):
    "Has the long run put away some steps?"
    return any(json.loads(f.read_text())['step'] > 0 for f in (folder/'store').glob('*/manifest.json'))


@pytest.mark.parametrize('how', ['interrupt', 'kill'])
def test_reproduce_goes_on_where_it_was_stopped(trial, how):
    first = command(trial)
    wait_until(lambda: in_training(trial))
    if how == 'interrupt': os.killpg(first.pid, signal.SIGINT)         # as a terminal does: to all of them
    else: os.killpg(first.pid, signal.SIGKILL)
    out, err = first.communicate(timeout=60)
    if how == 'interrupt':
        assert first.returncode == 130, err
        assert 'Stopped. The same command goes on from here.' in err and 'Traceback' not in err, err
    assert list(read_claims(trial/'out')) == [('trial:1-quick', 'smoke')]
    reached = max(json.loads(f.read_text())['step'] for f in (trial/'store').glob('*/manifest.json'))
    assert 0 < reached < 15_000

    second = command(trial)
    out, err = second.communicate(timeout=300)
    assert second.returncode == 0, err
    assert calls(trial) == ['quick', 'long', 'long']                    # the verdict of the quick one was kept
    assert '2 holds' in out and out.count('trial:2-long') >= 2, out
    records = read_claims(trial/'out')
    assert records['trial:2-long', 'smoke']['measured']['step'] == 15_000
    exps = records['trial:2-long', 'smoke']['experiments']
    assert list(exps) == [f.parent.name for f in (trial/'store').glob('*/manifest.json')]


def test_two_jobs_judge_the_same(trial, tmp_path):
    (trial/'calls').touch()
    p = command(trial, '--jobs', '2')
    out, err = p.communicate(timeout=300)
    assert p.returncode == 0, err
    assert [r['verdict'] for r in read_claims(trial/'out').values()] == ['holds']*2


# --- the papers ----------------------------------------------------------------------------------------------------

@pytest.mark.parametrize('name', list(settings()))
def test_settings_exist_at_every_scale(name):
    for at in ('smoke', 'cpu', 'paper'):
        exp = settings()[name](at)
        assert from_dict(to_dict(exp)) == exp
        shape_check(exp)
    assert preset(name) == settings()[name]('cpu')


def test_whole_sweeps_exist_at_the_size_of_the_paper():
    for exp in (*starts('paper').values(), *decay_sweep('paper').values(), *(at_rate(noisy('paper'), r, 1.) for r in rates('paper'))): shape_check(exp)


@pytest.mark.parametrize('paper', ['dichotomy', 'groktransfer'])
def test_every_claim_of_the_paper_has_a_judge(paper):
    ids = set(known_claims().id[known_claims().id.str.startswith(f'{paper}:')])
    assert ids == {c.id for c in claims(f'{paper}:*')}


def test_committed_verdicts_are_complete():
    records = {i: r for (i, at), r in read_claims(KEPT).items() if at == 'cpu'}
    ours = {c.id: c for c in claims() if c.chapter.startswith('grok_nb.')}
    assert set(records) == set(ours)
    for i, r in records.items():
        assert r['verdict'] in ('holds', 'fails'), f"{i}: {r['error']}"
        assert r['measured'] and r['says'] == ours[i].says and r['chapter'] == ours[i].chapter
    figures = {r['figure'] for r in records.values() if r['figure']}
    assert figures == {f'figures/{f.name}' for f in (KEPT/'figures').glob('*.png')}
    assert all((KEPT/f).stat().st_size < 100_000 for f in figures)

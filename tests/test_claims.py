"The ledger at work: interrupts, kills, the committed verdicts, and the papers' own sizes."
import os
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from configparser import ConfigParser
from pathlib import Path

import pytest

from grok_nb.all import AdamW, Experiment, Free, MLP, ModularArithmetic, fit, search, sweep, transfer
from grok_nb.papers.dichotomy_addition import decay_sweep, starts
from grok_nb.papers.dichotomy_noise import at_rate, noisy, rates
from grok_nb.papers.ledger import Claim, Evidence, claims, examine, known_claims, load_chapters, settings
from grok_nb.analysis.predict import shape_check
from grok_nb.papers.reproduce import read_claims
from grok_nb.tasks.config import from_dict, lengths, to_dict
from grok_nb.train.events import listening
from grok_nb.train.presets import preset
from grok_nb.train.runs import runs
from waiting import forked, until

ROOT = Path(__file__).resolve().parent.parent
KEPT = ROOT/'nbs/papers/claims'

load_chapters()

STEPS = 300
TRIAL = f'''
import os
from grok_nb.papers.ledger import Evidence, claim
from grok_nb.train.events import listening
from grok_nb.train.fit import fit
from grok_nb.train.presets import preset

here = os.path.dirname(__file__)
exp = preset('parity').but(steps={STEPS}, keep=0, n=20, width=16, seeds=2)

def note(name):
    with open(os.path.join(here, 'calls'), 'a') as f: f.write(name + '\\n')

def held(exp, step):
    try: return 'hold' if step >= int(open(os.path.join(here, 'hold')).read()) else ''
    except FileNotFoundError: return ''

@claim('trial:1-quick', says='it is quick')
def _(at):
    note('quick')
    return Evidence(dict(one=1), holds=True)

@claim('trial:2-long', says='it is long')
def _(at):
    note('long')
    with listening(ask=held): run = fit(exp, commit_every=.2)
    return Evidence(dict(step=run.step), holds=run.finished)
'''


@pytest.fixture
def trial(tmp_path):
    (tmp_path/'trial_claims.py').write_text(TRIAL)
    return tmp_path


def reproduces(folder, words):
    "`grok-nb reproduce` on the trial claims; what it says goes to files."
    for fd, name in enumerate(('out.txt', 'err.txt'), 1): os.dup2(os.open(f'{folder}/{name}', os.O_WRONLY | os.O_CREAT | os.O_TRUNC), fd)
    os.environ.update(PYTHONPATH=f'{folder}{os.pathsep}{ROOT}', GROK_NB_STORE=f'{folder}/store', OMP_NUM_THREADS='1')
    os.chdir(folder)
    sys.path.insert(0, folder)
    from grok_nb.lab.cli import main
    main(['reproduce', 'trial:*', '--scale', 'smoke', '--out', f'{folder}/out', '--module', 'trial_claims', *words])


def command(folder, *words):
    "That in a process, until the block ends."
    return forked(reproduces, str(folder), words)


def ended(p, folder, what):
    "What the process wrote to its output and its error output, once it has ended"
    until(lambda: p.exitcode is not None, f'{what} ended')
    return [(folder/name).read_text() for name in ('out.txt', 'err.txt')]


def calls(folder): return (folder/'calls').read_text().split() if (folder/'calls').exists() else []


def step(folder):
    "How far the long run has come"
    return max(runs(folder/'store').step, default=0)


def stopped(folder, sign, most, *words):
    "Begin, and send a sign to all processes, as a terminal does, once the long run has put away more steps; exit code and error output."
    (folder/'hold').write_text(str(most))                               # where it waits, if the sign is late
    before = step(folder)
    with command(folder, *words) as p:
        until(lambda: (step(folder) > before and read_claims(folder/'out')) or p.exitcode is not None, 'the long claim commits a step', every=.2)
        os.killpg(p.pid, sign)
        _, err = ended(p, folder, f'reproduce, after {sign!r},')
    (folder/'hold').unlink()
    assert list(read_claims(folder/'out')) == [('trial:1-quick', 'smoke')]
    assert before < step(folder) <= most
    return p.exitcode, err


@pytest.mark.parametrize('how', ['fit', 'sweep', 'sweep with an executor', 'search', 'transfer'])
def test_a_judge_whose_training_was_stopped_gives_no_verdict(how, tmp_path):
    "Whichever call trains: the interrupt goes on, so nothing is judged by half of a run."
    weak = preset('parity').but(steps=10**7, keep=0, n=20, width=16, seeds=2)
    added = Experiment(ModularArithmetic(p=7), MLP(width=8, embed=Free(3)), AdamW(.01), steps=10**7)
    do = {'fit': lambda: fit(weak, tmp_path),
          'sweep': lambda: sweep(weak.grid(lr=[.1, .2]), store=tmp_path, progress=False),
          'sweep with an executor': lambda: sweep([weak], ThreadPoolExecutor(1), store=tmp_path, progress=False),
          'search': lambda: search(weak, {'optim.lr': [.1, .2]}, 2, store=tmp_path),
          'transfer': lambda: fit(transfer(added, added.but({'model.embed': Free(6)})), tmp_path)}[how]
    def judge(at): do(); return Evidence({}, holds=True)
    asked = []
    def ask(exp, step):
        asked.append(step)
        return 'stop' if len(asked) > 4 else ''
    with listening(ask=ask), pytest.raises(KeyboardInterrupt): examine(Claim('trial:x', 'something', judge))


def test_reproduce_goes_on_where_it_was_stopped(trial):
    code, err = stopped(trial, signal.SIGINT, STEPS//3, '--jobs', '2')
    assert code == 130, err
    assert 'Stopped. The same command goes on from here.' in err and 'Traceback' not in err, err
    code, err = stopped(trial, signal.SIGKILL, STEPS//2)
    assert code == -signal.SIGKILL, err

    with command(trial) as p: out, err = ended(p, trial, 'the third reproduce')
    assert p.exitcode == 0, err
    assert calls(trial) == ['quick', 'long', 'long', 'long']            # the verdict of the quick one was kept
    assert '2 holds' in out and out.count('trial:2-long') >= 2, out
    records = read_claims(trial/'out')
    assert [r['verdict'] for r in records.values()] == ['holds']*2
    assert records['trial:2-long', 'smoke']['measured']['step'] == STEPS
    exps = records['trial:2-long', 'smoke']['experiments']
    assert list(exps) == runs(trial/'store').id.tolist()


# --- the papers ----------------------------------------------------------------------------------------------------

def few(exp):
    "The same with two replicas, where their number is free: it is the size of the first axis, and nothing else."
    free = exp.start is None and isinstance(exp.seeds, int) and not lengths(exp)
    return exp.but(seeds=min(exp.seeds, 2)) if free else exp


@pytest.mark.parametrize('name', list(settings()))
def test_settings_exist_at_every_scale(name):
    for exp in dict.fromkeys(settings()[name](at) for at in ('smoke', 'cpu', 'paper')):
        assert from_dict(to_dict(exp)) == exp
        shape_check(few(exp))
    assert preset(name) == settings()[name]('cpu')


def test_whole_sweeps_exist_at_the_size_of_the_paper():
    for exp in (*starts('paper').values(), *decay_sweep('paper').values(), *(at_rate(noisy('paper'), r, 1.) for r in rates('paper'))): shape_check(exp)


@pytest.mark.parametrize('paper', ['dichotomy', 'groktransfer'])
def test_every_claim_of_the_paper_has_a_judge(paper):
    ids = set(known_claims().id[known_claims().id.str.startswith(f'{paper}:')])
    assert ids == {c.id for c in claims(f'{paper}:*')}


def test_every_chapter_is_a_leaf():
    "The list of `.importlinter` names all chapters, so that none is imported."
    cfg = ConfigParser()
    cfg.read(ROOT/'.importlinter', encoding='utf-8')
    house = {'ledger', 'reproduce', 'scoreboard'}
    chapters = {f'grok_nb.papers.{f.stem}' for f in (ROOT/'grok_nb/papers').glob('[!_]*.py') if f.stem not in house}
    assert set(cfg['importlinter:contract:leaves']['protected_modules'].split()) == chapters


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

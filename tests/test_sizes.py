"What is too large for a machine is refused by the config or by the estimate, before anything of that size is made."
import json, os, sys
from dataclasses import fields
from pathlib import Path

import pytest

from waiting import forked, until
from grok_nb.tasks.config import Config, ConfigError
from grok_nb.train import size
from grok_nb.train.checkup import built_in
from grok_nb.train.presets import presets


def judge(texts, folder):
    "Try each in a process that nothing has grown in; what was said and by how much it grew goes to a file, an error to another."
    import resource
    os.dup2(os.open(f'{folder}/err.txt', os.O_WRONLY | os.O_CREAT), 2)
    os.environ['GROK_NB_STORE'] = f'{folder}/store'
    size.free_memory = lambda device='cpu': 8*10**9
    names = {}
    exec('from grok_nb.all import *', names)
    demo = presets['modular-addition'].experiment
    names |= dict(demo=demo, small=demo.but(model=names['MLP'](width=64), seeds=1))
    def grown(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss*(1 if sys.platform == 'darwin' else 1024)
    size.memory(demo)                       # what PyTorch imports for tensors without numbers counts before
    before, out = grown(), {}
    for text in texts:
        try: eval(text, names); out[text] = 'it was allowed'
        except ConfigError as e: out[text] = str(e)
        except BaseException as e: out[text] = f'{type(e).__name__}: {e}'[:200]
    Path(folder, 'said.json').write_text(json.dumps(dict(said=out, grown=grown() - before)))


LARGE = ['small.but(task=ModularArithmetic(p=4096))', 'small.but(task=GroupComposition(Symmetric(7)))', 'demo.but(width=10**6)',
         'demo.but(width=2**53)', 'demo.but(seeds=65536)', 'demo.but(seeds=65536, data_seed="own")', 'demo.but(seeds=65536, batch=8)',
         'demo.but(optim=chain(Grokfast("ma", window=10**6), AdamW(.01)))', 'demo.but(model=Transformer(depth=600))']
FREE = 'GB free; '
REFUSED = {f'fit({e}, device="cpu")': FREE for e in LARGE}
REFUSED |= {f'{e}.predict("cpu")': FREE for e in LARGE}
REFUSED |= {f'sweep([{e}], device="cpu")': FREE for e in LARGE[:2] + LARGE[3:4]}
REFUSED |= {'sweep(demo.but(keep=10**6, steps=10**7), device="cpu")': 'weights that are kept'}
ENDLESS = 'demo.but(steps=10**12, every=1)'
REFUSED |= {f: 'every must be None or at least 100,000 with steps=1,000,000,000,000'
            for f in (f'fit({ENDLESS}, device="cpu")', f'{ENDLESS}.predict("cpu")', f'sweep({ENDLESS}, device="cpu")')}
REFUSED |= {'demo.grid(wd=range(1000), lr=range(10_000))': 'grid: this makes 10,000,000 experiments',
            'demo.grid(wd=range(10**12))': 'more than 1,000,000 values', 'demo.random(10**12, wd=[1.])': 'random: this makes 1,000,000,000,000 experiments',
            'demo.zip(wd=range(10**12), lr=range(10**12))': 'more than 1,000,000 values'}
REFUSED |= {'Boolean(n=2**40, train=100)': 'n must be', 'Boolean(n=2**40)': 'n must be', 'MLP(depth=10**7)': 'depth must be',
            'Transformer(depth=10**7)': 'depth must be', 'Grokfast("ma", window=2**53)': 'window must be', 'demo.but(keep=2**31)': 'keep must be',
            'Doubling(every=1, times=2**31)': 'times must be', 'demo.but(seeds=(2**63,))': 'seeds must be',
            'demo.but(data_seed=2**63)': 'data_seed must be', 'demo.but(steps=10**5000)': 'steps must be'}


@pytest.fixture(scope='module')
def answers(tmp_path_factory):
    folder = tmp_path_factory.mktemp('sizes')
    with forked(judge, list(REFUSED), str(folder)) as p: until(lambda: p.exitcode is not None, 'all were tried')
    assert p.exitcode == 0, (folder/'err.txt').read_text()
    return json.loads((folder/'said.json').read_text())


@pytest.mark.parametrize('text', REFUSED)
def test_too_large_is_refused_in_a_sentence(answers, text):
    assert REFUSED[text] in answers['said'][text] and len(answers['said'][text]) < 600


def test_nothing_of_that_size_was_made(answers): assert answers['grown'] < 500e6


def test_no_preset_is_refused(monkeypatch):
    monkeypatch.setattr(size, 'free_memory', lambda device='cpu': 8*10**9)   # the largest, of a paper, takes 4.4
    for p in presets.values(): size.check_memory(p.experiment)


RULES = [(c, f) for c in built_in(Config).values() for f in fields(c) if 'rule' in f.metadata]


@pytest.mark.parametrize('cls, field', [pytest.param(c, f, id=f'{c.__name__}.{f.name}') for c,f in RULES])
def test_every_field_refuses_a_number_beyond_all_bounds_in_short(cls, field):
    for bad in (10**400, 10**5000, -10**5000, (10**5000,)):
        with pytest.raises(ConfigError) as e: field.metadata['rule'](cls.__name__, field.name, bad)
        assert str(e.value).startswith(f'{cls.__name__}: {field.name}=') and len(str(e.value)) < 1200


def test_whole_numbers_end_where_doubles_stop_to_be_exact():
    from grok_nb.train.experiment import Experiment
    whole = {f.name: f.metadata['rule'] for f in fields(Experiment)}
    for name in ('steps', 'batch', 'every'):
        assert whole[name]('Experiment', name, 2**53) == 2**53
        with pytest.raises(ConfigError, match='<= 2.53'): whole[name]('Experiment', name, 2**53 + 1)
    assert whole['seeds']('Experiment', 'seeds', (2**63 - 1,)) == (2**63 - 1,)

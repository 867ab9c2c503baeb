"Properties of configs: good values travel unchanged, bad ones are named, in Python and on the command line."
import json
import math
import subprocess
import sys

import pytest
from grok_nb.all import AdamW, ConfigError, Continued, Experiment, Handover, MLP, MSE, ModularArithmetic, SGD, preset
from grok_nb.lab.cli import main
from grok_nb.models.embed import Fixed, Free, LowRank
from grok_nb.models.init import He, Normal, PyTorch, Sign, Sparse, Xavier
from grok_nb.models.mlp import activations
from grok_nb.tasks.array import Array  # noqa: F401, what a repr may name
from grok_nb.tasks.config import from_dict, paths, to_dict
from hypothesis import given, settings
from hypothesis import strategies as st

positive = st.floats(1e-6, 10)
rates = st.one_of(positive, st.lists(positive, min_size=3, max_size=3))
ops = st.sampled_from(['+', '-', '*', 'a*a + a*b + b*b', '(a - 3*b)**5', 'a**2*b'])
tasks = st.builds(ModularArithmetic, op=ops, p=st.integers(5, 40), train_frac=st.floats(.05, .95))
embeds = st.none() | st.builds(Free, size=st.integers(1, 9), scale=rates) | st.builds(Fixed, st.sampled_from(['one-hot', 'binary', 'text']), seed=st.integers(0, 9)) | \
    st.builds(LowRank, rank=st.just(2), size=st.integers(1, 9), A=st.none() | st.just([[1., 2.]]*5), train_A=st.booleans())
models = st.builds(MLP, width=st.integers(1, 64), depth=st.integers(1, 4), act=st.sampled_from(list(activations)),
                   bias=st.sampled_from(['none', 'first', 'all']), scale=rates, embed=embeds, tied=st.booleans(),
                   weights=st.sampled_from([PyTorch(), He(), Xavier(), Sign(.5), Normal(.1, .01), Sparse(3)]), zero=st.sampled_from(['none', 'last']), train=st.sampled_from(['all', 'last', 'hidden']))
optims = st.builds(AdamW, lr=rates, wd=rates) | st.builds(SGD, lr=rates, momentum=st.floats(0, .99), decay=st.sampled_from(['coupled', 'decoupled', 'literal']))
experiments = st.builds(Experiment, tasks, models, optims, steps=st.integers(10, 10**6), seeds=st.just(3) | st.lists(st.integers(0, 99), min_size=3, max_size=3),
                        data_seed=st.integers(0, 9), loss=st.builds(MSE), batch=st.none() | st.integers(1, 99), keep=st.integers(0, 5) | st.lists(st.integers(0, 10)))
starts = st.none() | st.builds(Handover, experiments, at=st.sampled_from(['end', 'first test >= .3']) | st.integers(0, 9), otherwise=st.sampled_from(['refuse', 'end'])) | \
    st.builds(Continued, experiments, merge=st.booleans())


@given(experiments, starts)
def test_what_it_begins_with_is_part_of_an_experiment_and_no_start_leaves_no_trace(exp, start):
    later = exp.but(start=start)
    assert from_dict(json.loads(json.dumps(to_dict(later)))) == later and eval(repr(later)) == later
    assert (later.id == exp.id) == (start is None) == ('start' not in to_dict(later))
    assert later.but(width=7).start == start and later.but(width=7).model.width == 7


@given(experiments)
def test_a_config_survives_json_python_and_hash(exp):
    assert from_dict(json.loads(json.dumps(to_dict(exp)))) == exp
    assert eval(repr(exp)) == exp and eval(repr(exp)).id == exp.id
    assert exp.but({k: v for k,v in paths(exp).items() if '.' in k}) == exp
    assert hash(exp) == hash(exp.but())


@given(experiments, experiments)
def test_different_experiments_have_different_ids(a, b): assert (a == b) == (a.id == b.id)


def test_the_id_is_the_same_in_every_process():
    exp = preset('modular-addition')
    code = "from grok_nb.train.presets import preset; print(preset('modular-addition').id)"
    for seed in ('0', '1'):
        out = subprocess.run([sys.executable, '-c', code], env={**__import__('os').environ, 'PYTHONHASHSEED': seed}, capture_output=True, text=True, check=True)
        assert out.stdout.strip() == exp.id


text = st.text(st.characters(codec='utf-8', categories=('L', 'N', 'P')), max_size=12)
not_a_number = text | st.none() | st.booleans() | st.just(math.nan) | st.just(math.inf) | st.just({}) | st.just([])
not_a_count = not_a_number | st.floats()
bad = {
    'task.op': text.filter(lambda s: not set(s) <= set('ab+-*/()0123456789')) | st.integers() | st.none(),
    'task.p': not_a_count | st.integers(max_value=1) | st.integers(min_value=4097),
    'task.train_frac': not_a_number | st.floats(max_value=0) | st.floats(min_value=1, exclude_min=True),
    'model.width': not_a_count | st.integers(max_value=0),
    'model.depth': not_a_count | st.integers(max_value=0),
    'model.act': text.filter(lambda s: s not in activations) | st.integers(),
    'model.scale': not_a_number | st.floats(max_value=0) | st.lists(st.floats(max_value=0), min_size=1),
    'optim.lr': not_a_number | st.floats(max_value=0, exclude_max=True).filter(lambda v: v < 0),
    'optim.wd': not_a_number | st.floats(max_value=0, exclude_max=True).filter(lambda v: v < 0),
    'optim.beta2': not_a_number | st.floats(min_value=1),
    'optim.decay': text.filter(lambda s: s not in ('coupled', 'decoupled', 'literal')) | st.none(),
    'steps': not_a_count | st.integers(max_value=0),
    'seeds': not_a_number.filter(lambda v: v != []) | st.integers(max_value=0) | st.floats(),
    'data_seed': not_a_count.filter(lambda v: v != []) | st.integers(max_value=-1),
    'batch': (not_a_count | st.integers(max_value=0)).filter(lambda v: v is not None),
    'dtype': text.filter(lambda s: s not in ('float32', 'float64')) | st.none(),
}


@pytest.mark.parametrize('field', bad)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_a_bad_value_is_named(field, data):
    value = data.draw(bad[field])
    with pytest.raises(ConfigError) as e: preset('modular-addition').but({field: value})
    said, name = str(e.value), field.split('.')[-1]
    if isinstance(value, dict): return
    assert f'{name}={value!r} is not allowed; {name} must be ' in said, said


def command(words, capsys):
    "Exit code and standard error of a command."
    with pytest.raises(SystemExit) as e: main(words)
    return e.value.code, capsys.readouterr().err


@pytest.mark.parametrize('field', bad)
def test_a_bad_value_on_the_command_line(field, capsys, tmp_path):
    @settings(max_examples=15, deadline=None)
    @given(bad[field].filter(lambda v: not isinstance(v, dict)))
    def check(value):
        code, err = command(['run', 'modular-addition', '--store', str(tmp_path), '--set', f'{field}={json.dumps(value)}'], capsys)
        assert code == 2 and 'Traceback' not in err and err.startswith('grok-nb: '), err
        assert f'{field.split(".")[-1]}=' in err and ' must be ' in err
    check()
    assert not list(tmp_path.iterdir())           # nothing was begun


@pytest.mark.parametrize('words, says', [
    (['run', 'mnist'], 'a preset: modular-addition'),
    (['run', 'nothing.toml'], 'a file that exists'),
    (['run', 'modular-addition', '--set', 'optim.speed=3'], "no single field 'optim.speed'; allowed: one of task, task.op"),
    (['run', 'modular-addition', '--set', 'wd'], 'field=value'),
    (['run', 'modular-division', '--set', 'p=15'], 'a prime number'),
    (['run', 'modular-addition', '--set', 'optim.lr=[0.1, 0.2]'], 'one for each replica'),
    (['run', 'modular-addition', '--store', '/dev/null/x'], 'must be a folder you may write to'),
    (['run', 'modular-addition', '--device', 'abacus'], 'one that this machine has'),
    (['run', 'modular-addition', '--steps', '-1'], 'a whole number >= 1'),
])
def test_other_mistakes_on_the_command_line(words, says, capsys, tmp_path, monkeypatch):
    monkeypatch.setenv('GROK_NB_STORE', str(tmp_path))
    code, err = command(words, capsys)
    assert code == 2 and says in err and 'Traceback' not in err and len(err.strip().splitlines()) == 1, err


@given(st.dictionaries(text, st.integers() | text | st.lists(st.integers()) | st.dictionaries(text, st.integers(), max_size=2), max_size=4))
def test_a_file_of_anything_is_refused_in_a_sentence(d):
    with pytest.raises(ConfigError, match='is not allowed'): from_dict(d, Experiment)


@pytest.mark.parametrize('extra', [{'stepz': 5}, {'task': {'type': 'ModularArithmetic', 'q': 5}}, {'model': {'type': 'CNN'}}, {'optim': 3}])
def test_a_config_file_with_an_unknown_field(extra, tmp_path, capsys):
    f = tmp_path/'e.json'
    f.write_text(json.dumps(to_dict(preset('modular-addition')) | extra))
    code, err = command(['run', str(f), '--store', str(tmp_path/'s')], capsys)
    assert code == 2 and 'is not allowed' in err and 'Traceback' not in err

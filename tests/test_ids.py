"""Names that last: experiments and replicas are called what they were called when they were first trained

tests/ids.json holds the ids of the experiments that come with the library: its presets, the settings of the papers at every scale,
and one of each kind. If one of them changes, stored runs are no longer found. A new field is made with `added(...)`, and none does."""
import hashlib
import json
from dataclasses import MISSING, field, fields, replace
from pathlib import Path

import pytest
from grok_nb.all import AdamW, Experiment, MLP, ModularArithmetic
from grok_nb.papers.ledger import scales, settings
from grok_nb.tasks.config import Config, added, config, to_dict, whole
from grok_nb.train.experiment import replica_ids
from grok_nb.train.golden import golden_experiments
from grok_nb.train.presets import presets
from test_arithmetic import KINDS

THERE = Path(__file__).with_name('ids.json')


def names(exps):
    "The ids of an experiment and of its first replica; of many experiments a digest of them"
    if isinstance(exps, Experiment): return f'{exps.id} {replica_ids(exps)[0]}'
    return hashlib.sha256(' '.join(map(names, exps)).encode()).hexdigest()[:16]


def everything():
    "Name -> ids"
    out = {f'golden: {k}': names(e) for k, e in golden_experiments().items()}
    out |= {f'kind: {k}': names(e) for k, e in KINDS.items() if k != 'module'}     # whose class is a test's own
    out |= {f'preset: {k}': names(p.experiment) for k, p in presets.items() if ':' not in k}
    return out | {f'setting: {k} at {at}': names(f(at)) for k, f in settings().items() for at in scales}


def test_every_id_is_the_committed_one():
    found, there = everything(), json.loads(THERE.read_text())
    assert found.keys() >= there.keys() and len(there) > 200
    assert not (wrong := {k: (found[k], v) for k, v in there.items() if found[k] != v}), wrong


@pytest.fixture
def a_later_release(monkeypatch):
    "In which an MLP, AdamW and an experiment have one field more"
    before, later = dict(Config._known), []
    for cls in (MLP, AdamW, Experiment):
        body = {k: v for k, v in vars(cls).items() if not k.startswith('__') or k in ('__module__', '__len__', '__doc__')}
        body = {k: v for k, v in body.items() if k not in {f.name for f in fields(cls)}}
        notes = {f.name: f.type for f in fields(cls)} | dict(extra=int)
        body |= {f.name: _again(f) for f in fields(cls)} | dict(extra=added(whole(3)), __annotations__=notes)
        later.append(config(type(cls.__name__, cls.__bases__, body)))
    yield later
    Config._known.clear()
    Config._known.update(before)


def _again(f):
    "A field as it was written"
    return field(metadata=f.metadata, **({} if f.default is MISSING else dict(default=f.default)))


def test_a_field_that_is_added_changes_no_id(a_later_release):
    mlp, adam, _ = a_later_release
    for e in (KINDS['square'], KINDS['deep'], golden_experiments()['addition']):
        new = replace(e, model=mlp(**{f.name: getattr(e.model, f.name) for f in fields(e.model)}), optim=adam(**{f.name: getattr(e.optim, f.name) for f in fields(e.optim)}))
        assert (new.id, replica_ids(new)) == (e.id, replica_ids(e))
        other = new.but({'model.extra': 4})
        assert other.id != e.id and replica_ids(other) != replica_ids(e) and to_dict(other)['model']['extra'] == 4


def test_an_experiment_with_a_field_more(a_later_release):
    later = a_later_release[2]
    e = Experiment(ModularArithmetic(p=11), MLP(width=8), AdamW(.01), seeds=2)
    new = later(**{f.name: getattr(e, f.name) for f in fields(e)})
    assert (new.extra, new.id) == (3, e.id) and new.but(extra=4).id != e.id

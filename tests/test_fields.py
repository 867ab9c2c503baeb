"What a field may hold: whatever a file can, with or without a rule; all else is refused when a config is made."
import json
import math
import re
from dataclasses import field

import numpy as np
import pytest
import torch
from grok_nb.all import MLP, ConfigError, Free, LowRank
from grok_nb.tasks.array import array
from grok_nb.tasks.config import Config, Rule, config, from_dict, ruled, to_dict
from grok_nb.train.penalties import Penalty
from grok_nb.train.shard import all_replicas, make_shards
from grok_nb.train.sweep import sweep


@config
class Own(Config):
    "A config of a user's: two fields without a rule, one with a rule that lets all pass."
    a:object
    b:float = 0.
    c:object = ruled('anything', lambda v: v, None)


@config
class Held(Config):
    "A field for arrays goes on holding them."
    x:object = array(None, none=True)


odd = [{1: 2}, {'1': 2}, {}, {1, 2}, frozenset(), b'x', bytearray(b'x'), 1j, math.nan, math.inf, -math.inf, np.float32('nan'), np.datetime64('2020-01-01'),
       np.arange(3), torch.ones(2), object(), print, int, range(3), (1, {}), [[1, [math.nan]]], (Free(2), {1})]


@pytest.mark.parametrize('name', 'abc')
@pytest.mark.parametrize('value', odd, ids=lambda v: re.sub(' at 0x[0-9a-f]+', '', repr(v)))
def test_what_no_file_could_hold_is_refused_in_a_sentence(value, name):
    with pytest.raises(ConfigError) as e: Own(**(dict(a=1) | {name: value}))
    assert str(e.value).startswith(f'Own: {name}=') and f'{name} must be a finite number, a text' in str(e.value)
    assert (e.value.where, e.value.name) == ('Own', name)


@pytest.mark.parametrize('name', 'abc')
@pytest.mark.parametrize('value, same', [(np.int64(3), 3), (np.uint8(3), 3), (np.float32(.5), .5), (np.float64(.5), .5), (np.bool_(True), True), (np.str_('x'), 'x'),
                                         (np.array(3), 3), (torch.tensor(.5), .5), ([1, 2.], (1, 2.)), ((np.int8(1), [np.float64(2)]), (1, (2.,))), ([Free(2)], (Free(2),))], ids=repr)
def test_a_scalar_of_numpy_and_a_list_become_pythons_own(value, same, name):
    def kinds(v): return tuple(map(kinds, v)) if isinstance(v, tuple) else type(v)
    one, other = (Own(**(dict(a=1) | {name: v})) for v in (value, same))
    assert kinds(getattr(one, name)) == kinds(same) and one == other and one.id == other.id and hash(one) == hash(other)


@pytest.mark.parametrize('value', [True, False, None, 0, -3, 2**60, 1.5, 1e-300, '', 'text', (), (1, (2., ('x', None))), Free(2), (Free(2), LowRank(1, 2)), (1, Free(2)), (1, (2, (Free(2),)))], ids=repr)
def test_what_a_file_holds_comes_back_from_one(value):
    own = Own(value, c=value)
    assert from_dict(json.loads(json.dumps(to_dict(own)))) == own and len(own.id) == 16 and hash(own) == hash(own.but())
    assert own.a == value and type(own.a) is type(value)


def test_arrays_keep_their_own_field():
    held = Held(np.arange(6.).reshape(2, 3))
    assert held.x.shape == (2, 3) and from_dict(to_dict(held)) == held and Held().x is None
    assert Held(np.float64(3)).x.shape == () and Held(torch.tensor(3.)).id == Held(np.float32(3)).id
    assert MLP(width=np.int64(8)) == MLP(width=8)


# --- equal, and yet not the same -----------------------------------------------------------------------------------

@config
class Light(Penalty):
    "A penalty with a field that has no rule: 1 and 1. are equal, and have ids of their own."
    strength:object = 1
    def __call__(self, model, params): return self.strength*sum((p*p).flatten(1).sum(1) for p in params.values())


@config
class Each(Penalty):
    "The same with a field in which replicas of a bank may differ, so that the two share one."
    strength:object = field(default=1, metadata=dict(rule=Rule('anything', lambda v: v, varies=True)))
    def __call__(self, model, params): return sum((p*p).flatten(1).sum(1) for p in params.values())


@pytest.mark.parametrize('kind', [Light, Each])
def test_a_sweep_trains_both_of_two_that_are_equal_but_have_different_ids(kind, small, tmp_path):
    both = [small.but(penalty=(kind(v),), lr=.01) for v in (1, 1.)]
    assert both[0] == both[1] and both[0].id != both[1].id
    assert sum(map(len, make_shards(all_replicas(both)))) == 4 and sum(map(len, make_shards(all_replicas(both + both)))) == 4
    turns = iter(range(20))
    part = sweep(both, store=tmp_path, commit_every=0, ask=lambda: 'stop' if next(turns, None) is None else '')
    assert part.stopped
    whole = sweep(both, store=tmp_path)                       # taken up again, neither is taken for the other
    assert whole.frame.ended.tolist() == ['finished']*4 and whole.frame.id.nunique() == 2
    assert part.taken + whole.taken == sum(e.steps*len(e) for e in both)
    assert [whole.run(k).config.penalty[0].strength for k in (0, 1)] == [1, 1.] and {type(whole.run(k).config.penalty[0].strength) for k in (0, 1)} == {int, float}

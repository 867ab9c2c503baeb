"Defects that public implementations of these experiments have had, one test for each: ours must not share them."
import json
import re
from pathlib import Path

import grok_nb
import pytest
import torch
import torch.nn.functional as F
from grok_nb.all import AdamW, CrossEntropy, Experiment, Grokfast, LogCrossEntropy, MLP, ModularArithmetic, SGD, chain, gpt, make_bank
from grok_nb.tasks.config import from_dict, to_dict
from grok_nb.train.filters import Perpendicular
from grok_nb.train.members import load_data, measure


def one_step(opt, gradient, weight=1.):
    "A weight after one step from `weight`."
    p = dict(a=torch.full((1, 1), weight, dtype=torch.float64))
    opt.update(p, dict(a=torch.full_like(p['a'], gradient)), opt.init(p), 1)
    return p['a'].item()


def test_grokfast_decay_is_multiplied_by_the_learning_rate():
    "The defect: a decay of 1 sets every weight to zero in one step."
    for kind in ('ema', 'ma'):
        assert one_step(chain(Grokfast(kind), AdamW(lr=.001, wd=1.)), 0.) == pytest.approx(.999)


def test_grokfast_does_not_divide_the_learning_rate():
    "The defect: the rate is silently divided by 1 + lambda, so a constant gradient is not amplified at all."
    assert one_step(chain(Grokfast('ema', lamb=2.), SGD(lr=.1)), 1.) == pytest.approx(1 - .1*(1 + 2))
    assert one_step(chain(Grokfast('ma', window=1, lamb=5.), SGD(lr=.1)), 1.) == pytest.approx(1 - .1*(1 + 5))


def test_orthograd_keeps_beta2_and_eps_after_loading():
    "The defect: after loading a state the inner optimiser works with its default beta2 and eps."
    start, grads = (torch.randn(2, 5, generator=torch.Generator().manual_seed(i)) for i in (0, 1))
    def go_on(opt, state, w, steps):
        for t in steps: opt.update(dict(w=w), dict(w=grads), state, t)
        return w
    def fresh(opt): return opt, opt.init(dict(w=start)), start.clone()
    opt = chain(Perpendicular(), AdamW(lr=.05, beta2=.5, eps=.1))
    whole = go_on(*fresh(opt), range(1, 9))
    _, state, w = fresh(opt)
    go_on(opt, state, w, range(1, 5))
    stored, config = {k: v.clone() for k,v in state.items()}, json.dumps(to_dict(opt))      # as in files
    assert torch.equal(go_on(from_dict(json.loads(config)), stored, w, range(5, 9)), whole)
    assert not torch.allclose(go_on(*fresh(opt.but(beta2=.999, eps=1e-8)), range(1, 9)), whole)


def test_grokfast_window_does_not_keep_what_it_edited():
    "The defect: the filtered gradient enters the window, and a constant gradient of 1 gives 6, 12, 26, ..."
    f, p = Grokfast('ma', lamb=5., window=4), dict(a=torch.zeros(1, 1))
    state = f.init(p)
    assert [f.grads(p, dict(a=torch.ones(1, 1)), state, t, None)['a'].item() for t in range(1, 13)] == [1.]*3 + [6.]*9


def test_grokfast_window_keeps_copies():
    "The defect: where the gradient's memory is used again, all entries of the window are the last gradient."
    f, g = Grokfast('ma', lamb=1., window=2), dict(a=torch.zeros(1, 1))
    state, out = f.init(g), []
    for t in range(1, 5):
        g['a'].fill_(t)
        out.append(f.grads(g, g, state, t, None)['a'].item())
    assert out == [1., 2 + 1.5, 3 + 2.5, 4 + 3.5]


@pytest.mark.parametrize('loss', [CrossEntropy(), CrossEntropy('sum'), LogCrossEntropy()], ids=repr)
def test_chunks_are_not_added_up_as_means(loss):
    "The defect: over 15000 rows the means of chunks are summed, and the loss is 8-9 times too large."
    exp = Experiment(ModularArithmetic(p=127, train_frac=.05), MLP(width=4), AdamW(), loss=loss, dtype='float64')
    bank, data = make_bank(exp.model, exp.task, (0,), torch.float64), load_data(exp)
    x, y = data['test']
    assert len(x) > 15_000
    for rows in (1777, None): torch.testing.assert_close(measure(exp, bank, data, rows)['loss'][1], loss(bank(x), y))


def test_division_is_not_multiplication():
    "The defect: data called x/y is x*y."
    x, y = ModularArithmetic('/', p=23).data()
    assert (y*x[:, 1] % 23 == x[:, 0]).all()                                         # a/b is what times b is a
    assert (y != x[:, 0]*x[:, 1] % 23).float().mean() > .8


def test_division_is_modular_and_not_floor_division():
    "The defect: modular division is `//`."
    x, y = ModularArithmetic('/', p=23).data()
    for (a, b), c in zip(x.tolist(), y.tolist()): assert c == a*pow(b, -1, 23) % 23
    assert (y != x[:, 0]//x[:, 1]).float().mean() > .5


@pytest.mark.parametrize('op', ['+', '-', '*', '/', 'a*a + b'])
def test_zero_is_among_the_numbers(op):
    "The defect: 0 is left out of the table. Only division by it is."
    x, y = ModularArithmetic(op, p=11).data()
    assert len(x) == 11*(11 - (op == '/')) and (x[:, 0] == 0).any() and (y == 0).any()
    assert (x[:, 1] == 0).any() == (op != '/')


@pytest.mark.parametrize('p', [5, 59, 211])
def test_the_vocabulary_follows_the_modulus(p):
    "The defect: the number of tokens is fixed, whatever the modulus."
    task = ModularArithmetic(p=p)
    x, y = task.data()
    assert task.vocab == task.outputs == p == x.max() + 1 == y.max() + 1
    assert make_bank(MLP(width=2), task)(x[-3:]).shape == (1, 3, p)
    assert make_bank(gpt(d=4, heads=1, mlp=2), task).params['E'].shape == (1, p, 4)


def test_the_split_follows_its_seed():
    "The defect: the split is the same whatever the seed."
    task = ModularArithmetic(p=23)
    splits = [task.data('train', s)[0] for s in range(5)]
    assert len({tuple(map(tuple, s.tolist())) for s in splits}) == 5
    assert torch.equal(splits[3], task.data('train', 3)[0])
    own = load_data(Experiment(task, MLP(), AdamW(), seeds=2, data_seed=(0, 1)))['train'][0]
    assert torch.equal(own[0], splits[0]) and torch.equal(own[1], splits[1])


def test_the_residual_is_taken_before_the_normalisation():
    "The defect: N(h) + ... instead of h + ..., so that blocks which add nothing still replace the stream."
    task = ModularArithmetic(p=7)
    bank = make_bank(gpt(depth=2, d=8, heads=2, mlp=6), task)
    for k,v in bank.params.items():
        if k.endswith(('.O', '.W_out', '.b_out')): v.zero_()
    x = task.data()[0]
    stream = bank.params['E'][0][x[:, -1]] + bank.params['P'][0, 1]
    normal = F.layer_norm(stream, (8,), bank.params['ln.w'][0], bank.params['ln.b'][0])
    torch.testing.assert_close(bank(x)[0], normal @ bank.params['U'][0])


def test_nothing_is_put_on_a_fixed_device():
    "The defect: a decay mode calls `.cuda()`. (That every part works on another device is in test_devices.py.)"
    for f in Path(grok_nb.__file__).parent.rglob('*.py'):
        assert not re.search(r'\.cuda\(\)|\.to\(.cuda|device=.cuda', f.read_text(encoding='utf-8')), f


@pytest.mark.parametrize('decay', ['coupled', 'decoupled', 'literal'])
def test_every_kind_of_decay_runs_where_the_weights_are(decay):
    "The same defect, tried: weights on `meta`, one rate for all and one for each replica."
    for opt in (AdamW(wd=.1, decay=decay), AdamW(wd=(.1, .2), decay=decay), SGD(wd=(.1, .2), decay=decay)):
        p = dict(w=torch.ones(2, 3, device='meta'))
        opt.update(p, dict(w=torch.ones(2, 3, device='meta')), opt.init(p), 1)
        assert p['w'].device.type == 'meta'

"""One experiment, one result: by `fit`, by `sweep` at any number of slots, alone or in company, equal to the bit"""
import importlib
import os
import pkgutil
import subprocess
import sys
from dataclasses import fields

import pytest
from torch import nn

import grok_nb
from grok_nb.all import (
    Adam, AdamW, Boolean, Config, ConstrainedNorm, Cosine, DiagonalNet, Difference, Doubling, Experiment, Filter, Free, GD, Grokfast, Hinge, L2,
    LabelNoise, Linearised, LogCrossEntropy, Logistic, LossNormalised, MLP, MSE, MatrixCompletion, MatrixFactorisation, Model,
    ModularArithmetic, Movement, Muon, NormScaled, Norms, Optimiser, Perpendicular, SGD, Scaled, SparseLinear, StableMax,
    Transformer, WarmUp, chain, fit, gpt, network, open_run, sweep,
)
from grok_nb.tasks.arithmetic import arithmetic
from same import needs_bits, tables, tensors


@network
def small_net(s, width=9):
    return nn.Sequential(nn.Linear(s.features, width), nn.Tanh(), nn.LayerNorm(width), nn.Linear(width, s.outputs))


sums, bits = ModularArithmetic(p=7, train_frac=.6), Boolean(n=7, k=2, train=31, test=33)
fresh, relu = Boolean(n=7, k=2, test=33), MLP(width=9, act='relu', bias='all')


def on_sums(model=relu, optim=AdamW(lr=.01, wd=.1), **more):
    return Experiment(sums, model, optim, **(dict(steps=12, seeds=2) | more))


def on_bits(model=relu, optim=AdamW(lr=.01), task=bits, loss=Hinge(), **more):
    return Experiment(task, model, optim, loss=loss, **(dict(steps=12, seeds=2) | more))


KINDS = dict(
    square=on_sums(MLP(width=8, bias='all')), deep=on_sums(MLP(width=9, depth=2, act='gelu', bias='all')), narrow_layer=on_sums(MLP(width=1, act='tanh', depth=2)),
    embedded=on_sums(MLP(width=9, embed=Free(5))), transformer=on_sums(Transformer(d=12, heads=2)), gpt=on_sums(gpt(d=10, heads=1, depth=2)),
    difference=on_sums(Difference(relu)), scaled=on_sums(Scaled(relu, alpha=.3)), linearised=on_sums(Linearised(relu)),
    diagonal=Experiment(SparseLinear(dim=11, k=3, train=9, test=13), DiagonalNet(alpha=.1), GD(.01), loss=MSE(), steps=12, seeds=2),
    matrix=Experiment(MatrixCompletion(size=9), MatrixFactorisation(), AdamW(.01), loss=MSE(), steps=12, seeds=2),
    module=on_bits(small_net()), wide_inputs=on_bits(MLP(width=3), task=Boolean(n=200, k=2, train=31, test=33), data_seed='own'),
    sgd=on_sums(optim=SGD(.01, wd=.1)), momentum=on_sums(optim=SGD(.01, wd=.1, momentum=.9, decay='decoupled')), adam=on_sums(optim=Adam(.01, wd=.1)),
    some_momentum=on_sums(optim=SGD(.01, momentum=(0., .9))), literal=on_sums(optim=AdamW(.01, decay='literal')), betas=on_sums(optim=AdamW(.01, beta2=(.9, .99))), muon=on_sums(optim=Muon(.01)),
    stream=on_bits(task=fresh, batch=5, data_seed='own', steps=70), common_stream=on_bits(task=fresh, batch=5, steps=70), single_example=on_bits(task=fresh, batch=1), batches=on_sums(batch=5),
    own_data=on_sums(data_seed='own', batch=5), logistic=on_bits(loss=Logistic()), squares=on_sums(loss=MSE()), stablemax=on_sums(loss=StableMax()),
    double=on_sums(dtype='float64'), penalised=on_sums(penalty=(L2(.01),)), probed=on_sums(probes=(Norms(), Movement())))
FILTERS = dict(ema=Grokfast(), ma=Grokfast('ma', window=5), perpendicular=Perpendicular(), warm_up=WarmUp(7), cosine=Cosine(9), doubling=Doubling(at=(3, 5)),
               norm=ConstrainedNorm(), scaled_rate=NormScaled(size=2.))
KINDS |= {k: on_sums(optim=chain(f, AdamW(lr=.01, wd=.1))) for k, f in FILTERS.items()}
KINDS |= dict(noisy=on_bits(optim=chain(LabelNoise(kind='flip'), SGD(.1))), log_loss=on_sums(optim=chain(LossNormalised(), SGD(.1)), loss=LogCrossEntropy()))


def below(cls): return {c for s in cls.__subclasses__() for c in {s, *below(s)}}


def parts_of(value):
    "The classes of a config and of all that it is made of."
    if isinstance(value, tuple): return {c for v in value for c in parts_of(v)}
    return {*type(value).__mro__}.union(*(parts_of(getattr(value, f.name)) for f in fields(value))) if isinstance(value, Config) else set()


def test_every_model_optimiser_and_filter_of_ours_is_among_the_kinds():
    for m in pkgutil.walk_packages(grok_nb.__path__, 'grok_nb.'): m.name.endswith('__main__') or importlib.import_module(m.name)
    ours = {c for cls in (Model, Optimiser, Filter) for c in below(cls) if getattr(sys.modules.get(c.__module__), c.__name__, None) is c and c.__module__.startswith('grok_nb.')}
    assert len(ours) > 18 and ours - parts_of(tuple(KINDS.values())) == set()


def three_rates(exp):
    path = 'optim.optim.lr' if hasattr(exp.optim, 'filters') else 'optim.lr'
    return [exp.but({path: lr}) for lr in (.003, .01, .02)]


@pytest.mark.parametrize('kind', KINDS)
def test_fit_and_sweep_agree_to_the_bit(kind, tmp_path):
    exps = three_rates(KINDS[kind])
    alone = [fit(e, tmp_path/'fit', progress=False) for e in exps]
    for slots in (1, 4):
        result = sweep(exps, store=tmp_path/f'sweep{slots}', slots=slots, progress=False)
        for i, run in enumerate(alone):
            there = result.run(i)
            tables(there.history, run.history)
            if run.config.probes: tables(there.probes, run.probes)
            tensors(there.at().params, run.at().params, kind)


def said(code, **env):
    "What a process of its own prints that has not been asked for any arithmetic."
    ours = ('MKL_CBWR', 'ATEN_CPU_CAPABILITY', 'ONEDNN_MAX_CPU_ISA', 'GROK_NB_ARITHMETIC')
    env = {k: v for k, v in os.environ.items() if k not in ours} | env
    return subprocess.run([sys.executable, '-c', code], env=env, capture_output=True, text=True, check=True).stdout.strip()


@needs_bits
def test_what_is_asked_for_is_what_is_computed():
    ask = 'from grok_nb.tasks.arithmetic import arithmetic; import torch; torch.ones(99, 99) @ torch.ones(99, 99); print(arithmetic())'
    assert said(ask) == 'native'
    assert said(f'import torch; {ask}') == 'native'
    assert said(ask, GROK_NB_ARITHMETIC='portable') == 'portable'
    assert said(ask, GROK_NB_ARITHMETIC='free') == 'free'
    assert said(ask, MKL_CBWR='OFF') == 'free'


HALF = """
from grok_nb.all import *
from grok_nb.train.events import listening
exp = Experiment(ModularArithmetic(p=7, train_frac=.6), MLP(width=9), AdamW(), steps=20, seeds=2)
with listening(ask=lambda e, step: 'stop' if step == 5 else ''): fit(exp, {!r}, progress=False)
"""


@needs_bits
def test_going_on_in_another_arithmetic_is_said(tmp_path):
    said(HALF.format(str(tmp_path)), GROK_NB_ARITHMETIC='free')
    exp = Experiment(sums, MLP(width=9), AdamW(), steps=20, seeds=2)
    assert open_run(exp, tmp_path).environment['arithmetic'] == 'free'
    with pytest.warns(UserWarning, match='begun in the free arithmetic and goes on in the native one'): run = fit(exp, tmp_path, progress=False)
    assert run.finished and run.environment['arithmetic'] == arithmetic()


@needs_bits
def test_doctor_tells_what_is_computed():
    tell = 'from grok_nb.lab.cli import _arithmetic; print(_arithmetic())'
    assert said(tell, MKL_CBWR='OFF') == 'free, not native as asked: MKL_CBWR=OFF is set'
    assert 'PyTorch had computed before' in said('import torch; torch.ones(99, 99) @ torch.ones(99, 99);' + tell)

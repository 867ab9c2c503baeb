"Targets, outputs, losses, penalties and metrics of every shape that an experiment may ask for, and those it may not."
import pytest
import torch
from grok_nb.all import (AdamW, CrossEntropy, Experiment, Logistic, Loss, Metric, MLP, ModularArithmetic, MSE, Penalty, Sampled, Task, config, fit,
                         gpt, network)
from grok_nb.tasks.config import ConfigError, real, whole
from torch import nn

add = Experiment(ModularArithmetic(p=11, train_frac=.7), MLP(width=16, act='square'), AdamW(.01, wd=1.), steps=12, seeds=2)


@config
class Scaled(Sampled):
    "Numbers, each of them doubled; at five positions."
    train:int = whole(20, low=1, none=True)
    test:int = whole(20, low=1)
    shape, outputs, target, target_shape = (5, 3), 3, 'real', (5, 3)

    def draw(self, n, g, data_seed=0, clean=False):
        x = torch.randn(n, *self.shape, generator=g)
        return x, self.of(x)

    def of(self, x): return 2*x


@config
class Signs(Scaled):
    "At each position the sign of the first number."
    target, target_shape, outputs = 'sign', (5,), 1
    def of(self, x): return x[..., 0].sign()


@config
class Shares(Scaled):
    "At each position a distribution."
    target = 'distribution'
    def of(self, x): return (3*x).softmax(-1)


@config
class Sum(Scaled):
    "One number, in a vector of one."
    shape, features, target_shape, outputs = (3,), 3, (1,), 1
    def of(self, x): return x.sum(1, keepdim=True)


@config
class Nothing(Sum):
    "No target at all."
    target, target_shape, outputs = 'none', (), 3
    def of(self, x): return None


@config
class Reconstruction(Loss):
    "Squared distance of the outputs to the inputs."
    targets = ('none',)
    def on(self, batch): return (batch.outputs - batch.x).square().mean((1, 2))


@config
class Off(Metric):
    "Distance of each position from its target."
    def each(self, outputs, y): return (outputs - y).abs().mean(-1)


@network
def linear(sizes): return nn.Linear(sizes.shape[-1], sizes.outputs)


def trained(exp, tmp_path): return fit(exp, tmp_path, device='cpu', progress=False)


@pytest.mark.parametrize('task, loss', [(Scaled(), MSE()), (Signs(), Logistic()), (Signs(), MSE()), (Shares(), CrossEntropy()), (Sum(), MSE())])
@pytest.mark.parametrize('more', [dict(), dict(batch=7, chunk=3), dict(data_seed='own')])
def test_it_learns(task, loss, more, tmp_path):
    h = trained(Experiment(task, linear(), AdamW(.03, wd=0.), loss=loss, steps=80, seeds=2, **more), tmp_path).history
    first, last = (h[(h.split == 'test') & (h.step == t)] for t in (0, 80))
    assert (last.loss.to_numpy() < .8*first.loss.to_numpy()).all()
    if task.target != 'real': assert (last.accuracy.to_numpy() > first.accuracy.to_numpy()).all()


def test_as_many_replicas_as_examples(tmp_path):
    "A vector of one number is not taken for a number of each replica."
    one, many = (trained(Experiment(Sum(), m, AdamW(.01), loss=MSE(), steps=30, seeds=20), tmp_path) for m in (MLP(width=8), linear()))
    for run in (one, many): assert run.history[run.history.step == 30].loss.max() < run.history[run.history.step == 0].loss.max()
    assert len({*one.history[one.history.step == 30].loss}) == 40                   # all differ


@pytest.mark.parametrize('more', [dict(), dict(batch=8, data_seed='own', task=Nothing(train=None))])
def test_targets_may_be_none(more, tmp_path):
    h = trained(Experiment(**dict(task=Nothing(), model=MLP(width=8), optim=AdamW(.01), loss=Reconstruction(), steps=40, seeds=2) | more), tmp_path).history
    assert h.loss.iloc[-1] < h.loss.iloc[0]


def test_a_metric_at_positions(tmp_path):
    h = trained(Experiment(Scaled(), linear(), AdamW(.03, wd=0.), loss=MSE(), metrics=(Off(),), steps=80, seeds=2), tmp_path).history
    assert h.off.iloc[-1] < .5*h.off.iloc[0]


def part(base, name, f):
    "A loss, penalty or metric with one method."
    return config(type('Own', (base,), {name: lambda self, *a: f(*a), '__module__': __name__, '__doc__': 'Made here.'}))()


def weighted(name, f):
    return config(type('Own', (Penalty,), {name: lambda self, *a: f(*a), '__module__': __name__, '__doc__': 'Made here.', 'weight': real(.1),
                                           '__annotations__': dict(weight=float)}))()


WRONG = {
    'a loss for all replicas': (lambda: dict(loss=part(Loss, 'on', lambda b: CrossEntropy()(b.outputs, b.y).mean())), r'loss=.*that gives \(\).*\(2,\)'),
    'a loss of each example': (lambda: dict(loss=part(Loss, 'on', lambda b: CrossEntropy().each(b.outputs, b.y))), 'loss must be one that gives a number for each'),
    'no loss': (lambda: dict(loss=part(Loss, 'on', lambda b: None)), 'that gives None'),
    'a penalty for all replicas': (lambda: dict(penalty=(weighted('on', lambda b: b.activations['hidden0'].abs().mean()),)), 'penalty must be one that gives'),
    'a penalty of each example': (lambda: dict(penalty=(weighted('on', lambda b: b.outputs.square().mean(-1)),)), 'penalty must be one that gives'),
    'no penalty': (lambda: dict(penalty=(weighted('of', lambda m, p: None),)), 'of=None is not allowed'),
    'no such activation': (lambda: dict(penalty=(weighted('on', lambda b: b.activations['hidden7']),)), "activations='hidden7' is not allowed"),
    'a metric without examples': (lambda: dict(metrics=(part(Metric, 'each', lambda f, y: f.mean((1, 2))),)), 'metrics must be one that gives'),
    'a metric named like a column': (lambda: dict(metrics=(config(type('Step', (Metric,), {'__doc__': 'Made here.'}))(),)), "metrics='step' is not allowed"),
}


@pytest.mark.parametrize('name', WRONG)
def test_what_gives_something_else_is_refused(name, tmp_path):
    make, says = WRONG[name]
    for seeds in (1, 2):
        with pytest.raises(ConfigError, match=says.replace('(2,', f'({seeds},')): trained(add.but({**make(), 'seeds': seeds}), tmp_path)


@config
class Pairs(Task):
    "Tokens with two axes."
    train_frac:float = real(.5, low=0, high=1)
    vocab, shape, outputs = 3, (2, 2), 3
    def examples(self):
        x = torch.arange(3).repeat(12).view(9, 2, 2)
        return x, x[:, 0, 0]


@pytest.mark.parametrize('model', [MLP(width=4), gpt(d=8, heads=2, mlp=8)])
def test_tokens_with_two_axes_need_a_module(model, tmp_path):
    with pytest.raises(ConfigError, match=r'shape=\(2, 2\) is not allowed'): trained(add.but(task=Pairs(), model=model), tmp_path)

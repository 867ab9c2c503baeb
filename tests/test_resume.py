"Whatever is trained: stopped and gone on with, it ends with the same bits as a run that was never stopped."
import signal

import pytest
import torch
from grok_nb.all import (AdamW, Boolean, ConstrainedNorm, Cosine, DiagonalNet, Difference, Direction, Doubling, Experiment, Grokfast, Hinge,
                         L2, LabelNoise, LogCrossEntropy, LossNormalised, LowRank, Margin, MLP, ModularArithmetic, Movement, MSE, Muon, Norms, Nuclear,
                         Perpendicular, SGD, SparseLinear, StableMax, Stop, Transformer, WarmUp, chain, fit, gpt, probe, runs, sweep)
from grok_nb.models.linearised import Linearised
from grok_nb.models.scaled import Scaled
from grok_nb.train.probes import LogTime
from same import same, tables

pressed = []


@probe
def tired(look):
    "Presses Ctrl-C once, at step 13."
    if look.step >= 13 and not pressed:
        pressed.append(look.step)
        signal.raise_signal(signal.SIGINT)
    return torch.zeros(len(look.bank))


base = Experiment(ModularArithmetic(p=7), MLP(width=8, act='square', bias='all'), AdamW(lr=.03), steps=30, seeds=2, keep=2,
                  probes=(Norms(), Margin(), Direction(shrink=.99), Movement(), tired()), keep_at=('train >= .3', 'train loss <= 1.8', 'test >= .1'))
online = base.but(task=Boolean('parity', n=10, k=2, test=50), model=MLP(width=8, bias='first'), loss=Hinge(), batch=8, optim=SGD(.1))
drawn = online.but({'task.train': 40, 'task.noise': .1})
numbers = base.but(task=SparseLinear(dim=10, train=8, test=6, inputs='gauss', labels='real'), model=DiagonalNet(), loss=MSE(),
                   probes=(Norms(), tired()))
cases = {
    'a rate for each replica': base.but(lr=(.01, .03), beta2=(.9, .98)), 'Muon': base.but(optim=Muon(names='W1', lr=(.1, .2))),
    'momentum': base.but(optim=SGD((.3, .1), momentum=.9, decay='literal', wd=.01)), 'Grokfast ema': base.but(optim=chain(Grokfast(), AdamW(.01))),
    'Grokfast ma': base.but(optim=chain(Grokfast('ma', window=5), AdamW(.01))), 'perpendicular': base.but(optim=chain(Perpendicular(), WarmUp(20), AdamW(.01))),
    'constrained norm': base.but(optim=chain(ConstrainedNorm((1., .7)), Cosine(20), SGD(.3))),
    'divided by the loss': base.but(optim=chain(LossNormalised(), Doubling(at=(5, 14)), SGD(.005)), loss=LogCrossEntropy(), probes=(LogTime(), tired())),
    'online': online, 'online, own data': online.but(data_seed=(0, 3)), 'drawn once, own data': drawn.but(data_seed=(0, 3)),
    'turned labels': drawn.but(optim=chain(LabelNoise(kind='flip', prob=(.1, .3)), SGD(.1))),
    'noisy labels, minibatches, own data': numbers.but(optim=chain(LabelNoise(std=(.1, .2)), SGD(.01)), batch=3, data_seed=(1, 2)),
    'float64 and penalties': base.but(dtype='float64', penalty=(L2(.01), Nuclear((.01, .02), 'W1'))), 'GPT': base.but(model=gpt(d=8, heads=2, mlp=6)),
    'transformer': base.but(model=Transformer(depth=2, d=8, heads=2, mlp=6)), 'difference': base.but(model=Difference(MLP(width=6))),
    'lazy': base.but(model=Scaled(MLP(width=6), (1., 9.)), lr=(.03, .003)), 'lazy, own data': base.but(model=Scaled(Difference(MLP(width=6)), 4., centred=False), data_seed='own'),
    'tangent': base.but(model=Linearised(MLP(width=6))), 'tangent from its start': base.but(model=Linearised(Scaled(Transformer(d=8, heads=2, mlp=6), (1., 9.)), 'start'), batch=7),
    'embedding': base.but(model=MLP(width=6, embed=LowRank(2, 5))), 'minibatches': base.but(loss=StableMax(), batch=7),
}


@pytest.mark.parametrize('exp', cases.values(), ids=list(cases))
def test_a_stopped_run_ends_with_the_same_bits(exp, tmp_path):
    pressed.clear()
    part = fit(exp, tmp_path/'a', device='cpu', commit_every=0)
    done, straight = fit(exp, tmp_path/'a', device='cpu'), fit(exp, tmp_path/'b', device='cpu')
    assert not part.finished and part.step >= 13 and done.finished and straight.finished
    assert straight.history.loss.notna().all()                          # or equal bits would say little
    same(done, straight)


@pytest.mark.parametrize('left', [None, Stop('norm >= 9')], ids=['finished', 'left'])
def test_what_a_rule_let_go_ends_there_though_it_was_trained_further_for_another_experiment(left, tmp_path):
    "Measured seldom to its end, then often until the rule: as if it had never been trained further."
    exp, rule, old, new = base.but(steps=60, probes=(Norms(),), keep_at='norm >= 8', lr=.05), Stop('norm >= 9'), tmp_path/'old', tmp_path/'new'
    fit(exp.but(looks=4), old, stop=left)
    a, b = fit(exp, old, stop=rule), fit(exp, new, stop=rule)
    assert 0 < b.step < 60 and (a.step, a.interrupted, a.finished, a.checkpoints) == (b.step, b.interrupted, b.finished, b.checkpoints)
    tables(a.history, b.history)
    tables(a.probes, b.probes)
    seen, alone = (runs(store).set_index('id').loc[exp.id] for store in (old, new))
    assert (seen.step, seen.finished) == (alone.step, alone.finished) == (b.step, False)
    frames = [sweep([exp], store=store, stop=rule).frame.drop(columns='seconds') for store in (old, new)]
    tables(*frames)
    same(fit(exp, old), fit(exp, new), goes_on=False)

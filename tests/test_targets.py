"Targets, outputs, losses, penalties and metrics of every shape that an experiment may ask for, and those it may not."
import pytest
import torch
from grok_nb.all import (AdamW, CrossEntropy, Difference, Experiment, LabelNoise, Logistic, Loss, Margin, Metric, MLP, ModularArithmetic, MSE, NoiseLabels,
                         Penalty, SGD, Sampled, Task, chain, config, costs, fit, gpt, network)
from grok_nb.analysis.embedding import swap
from grok_nb.analysis.frames import data_of
from grok_nb.analysis.linearise import kernel_accuracy
from grok_nb.analysis.margin import margins, spread
from grok_nb.analysis.ntk import jacobian, ntk, ntk_features
from grok_nb.analysis.progress import distance, relevance, sparsity
from grok_nb.analysis.regime import plot_regime, regime, regime_path
from grok_nb.lab.look import Film, kernel_or_rich, shot
from grok_nb.tasks.config import ConfigError, real, whole
from grok_nb.models.bank import make_bank
from grok_nb.models.linearised import Linearised
from grok_nb.models.noise import Noise, noisy
from grok_nb.models.scaled import Scaled as Times
from grok_nb.train.gradients import gradients
from same import tensors
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


@config
class Largest(Scaled):
    "At each position but the first which number is largest."
    target, target_shape = 'class', (5,)
    def of(self, x): return x.argmax(-1).index_fill(1, torch.tensor([0]), -100)


@pytest.mark.parametrize('task, loss', [(Largest(), CrossEntropy()), (Signs(), Logistic())])
def test_a_margin_at_positions(task, loss, tmp_path):
    "The smallest of all positions that have a target."
    run = trained(Experiment(task, linear(), AdamW(.01), loss=loss, steps=2, seeds=2, probes=(Margin('test'),)), tmp_path)
    x, y = task.data('test')
    f = run.at()(x)
    if task.target == 'sign': own = f[..., 0]*y
    else:
        x, y, f = x[:, 1:], y[:, 1:], f[:, :, 1:]
        right = torch.nn.functional.one_hot(y, 3).bool().expand(f.shape)
        own = f.masked_fill(~right, 0).sum(-1) - f.masked_fill(right, -torch.inf).amax(-1)
    torch.testing.assert_close(torch.tensor(run.probes[run.probes.step == 2]['margin.test'].to_numpy()), own.flatten(1).amin(1).detach(), check_dtype=False)


def test_a_step_costs_its_examples(tmp_path):
    "Not the positions of one."
    exp = Experiment(Scaled(), linear(), AdamW(.01), loss=MSE(), steps=4)
    whole, batch = (costs(trained(e, tmp_path), 'test loss <= 0').total[0] for e in (exp, exp.but(batch=20)))
    assert whole == batch


@network
def sum_of_two(sizes):
    "Two matrices that are added, and a number that is added to all outputs."
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.c = (nn.Parameter(torch.randn(3, 3)) for _ in range(3))
        def forward(self, x): return x @ (self.a + self.b) + self.c.sum()
    return Two()


def test_pieces_of_a_gradient_that_two_parameters_share(tmp_path):
    exp = Experiment(Scaled(), sum_of_two(), SGD(.1), loss=MSE(), steps=5, seeds=2)
    whole, pieces = (trained(e, tmp_path).at().params for e in (exp, exp.but(chunk=3)))
    for k in 'abc': torch.testing.assert_close(pieces[k], whole[k])


@config
class Pictures(Scaled):
    "Is the mean of a picture far from zero?"
    shape, target, target_shape, outputs = (2, 6, 6), 'class', (), 2
    def of(self, x): return (x.mean((1, 2, 3)).abs() > .1).long()


LAYERS = {
    'convolutions': lambda: [nn.Conv2d(2, 3, 3, padding='same', dilation=2), nn.ReLU(), nn.Conv2d(3, 5, 3), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(20, 2)],
    'of lines': lambda: [nn.Flatten(2), nn.Conv1d(2, 3, 5, stride=2, bias=False), nn.Tanh(), nn.Flatten(), nn.Linear(48, 2)],
    'transposed': lambda: [nn.ConvTranspose2d(2, 3, 2, stride=2), nn.BatchNorm2d(3, track_running_stats=False), nn.AvgPool2d(4), nn.Flatten(), nn.Linear(27, 2)],
    'activations': lambda: [nn.Flatten(), nn.Linear(72, 5), nn.SiLU(), nn.Linear(5, 7), nn.Softplus(), nn.Linear(7, 3), nn.ELU(), nn.Sigmoid(), nn.GELU(), nn.Mish(), nn.Linear(3, 2)],
}


@network
def layers(sizes, which='convolutions'): return nn.Sequential(*LAYERS[which]())


@pytest.mark.parametrize('which', LAYERS)
def test_a_module_is_the_same_in_any_company(which):
    "Outputs, loss and gradients, whether data are shared or each replica has its own."
    exp, (x, y) = Experiment(Pictures(), layers(which), AdamW(), seeds=6), Pictures().data('train')
    def computed(R, own):
        bank = make_bank(exp.model, exp.task, range(R))
        for p in bank.trained.values(): p.requires_grad_()
        a, b = (t.expand(R, *t.shape).contiguous() if own else t for t in (x, y))
        with noisy(Noise(torch.arange(R), 3)): loss, grads = gradients(exp, bank, a, b)
        return grads | dict(loss=loss, outputs=bank(a).detach())
    all_of_them = computed(6, True)
    for R in (1, 2, 3, 5):
        for own in (True, False): tensors(computed(R, own), {k: v[:R] for k, v in all_of_them.items()}, (which, R, own))


@network
def normal(sizes): return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4, track_running_stats=False), nn.Linear(4, sizes.outputs))


@pytest.mark.parametrize('wrap', [lambda m: m, Difference, lambda m: Times(m, 2.), Linearised], ids=['itself', 'difference', 'scaled', 'linearised'])
def test_what_compares_examples_is_known_through_a_wrapper(wrap, tmp_path):
    exp = Experiment(Sum(), wrap(normal()), AdamW(.01), loss=MSE(), steps=2)
    banks = [make_bank(wrap(m), exp.task) for m in (normal(), MLP(width=4))]
    assert [b.model.by_batch(b.params) for b in banks] == [True, False]
    with pytest.raises(ConfigError, match='chunk=10 is not allowed'): trained(exp.but(chunk=10), tmp_path)


@config
class Drawn(Sum):
    "Inputs and targets that are no tensors, or no targets."
    kind:int = whole(0)
    @property
    def target(self): return ('real', 'none')[self.kind]
    def draw(self, n, g, data_seed=0, clean=False):
        x, y = super().draw(n, g, data_seed, clean)
        return x.numpy(), None if self.kind else y.numpy()


@pytest.mark.parametrize('kind, loss', [(0, MSE()), (1, Reconstruction())])
@pytest.mark.parametrize('more', [dict(), dict(train=None, batch=6)])
def test_noise_labels_of_what_is_no_tensor(kind, loss, more, tmp_path):
    task = NoiseLabels(Drawn(kind=kind, **{k: v for k, v in more.items() if k == 'train'}))
    assert trained(Experiment(task, MLP(width=4), AdamW(.01), loss=loss, steps=3, batch=more.get('batch')), tmp_path).finished


@pytest.mark.parametrize('own', [0, 'own'])
def test_the_kernel_of_pictures(own, tmp_path):
    "Gradients of each output, as autograd gives them; everything that is made of them takes pictures too."
    run = trained(Experiment(Pictures(), layers(), AdamW(.01), steps=4, seeds=2, data_seed=own, keep=1), tmp_path)
    bank, (x, y) = run.at(), data_of(run)
    for p in bank.trained.values(): p.requires_grad_()
    few = x[:, :3] if own else x[:3]
    rows = [torch.autograd.grad(o, list(bank.trained.values()), retain_graph=True) for o in bank(few).flatten()]
    J = torch.stack([torch.cat([g.flatten(1) for g in r], 1).sum(0) for r in rows]).view(2, 3, 2, -1).double().detach()
    torch.testing.assert_close(jacobian(bank, few), J, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(ntk(bank, few, kind='trace'), torch.einsum('rncp,rmcp->rnm', J, J)/2, rtol=1e-3, atol=1e-3)
    for how in ('sketch', 'nystrom'): assert ntk_features(bank, few, 3, how).shape[:2] == (2, 3)
    path = regime_path(run, n=20)
    assert path.drift[path.step == 4].between(0, 1).all() and path.aligned.notna().all()
    assert len(regime(run)) == 2 and len(plot_regime(run)) == 2
    f = kernel_accuracy(run, steps=[4], kind='pseudo', ridge=.1)
    assert f.network.tolist() == run.history[(run.history.step == 4) & (run.history.split == 'test')].accuracy.tolist()
    torch.testing.assert_close(margins(bank, x, y), margins(bank, x, y, rows=3))


def test_margins_of_positions(tmp_path):
    "The smallest one of each example, as the probe has it."
    for task, loss in ((Largest(), CrossEntropy()), (Signs(), Logistic())):
        run = trained(Experiment(task, linear(), AdamW(.01), loss=loss, steps=2, seeds=2, probes=(Margin('test'),)), tmp_path)
        want = run.probes[run.probes.step == 2]['margin.test'].to_numpy()
        for x, y in (task.data('test'), [t.expand(2, *t.shape) for t in task.data('test')]):
            torch.testing.assert_close(margins(run.at(), x, y, rows=6).amin(1), torch.tensor(want), check_dtype=False)
            with pytest.raises(ConfigError, match=r'one for each of the 20 inputs at positions \(5,\)'): margins(run.at(), x, y[..., :3])
        assert len(spread(run)) == 2*len(run.checkpoints)
        assert (distance(run, run).agreement == 1).all()


def test_the_regime_of_several_numbers(tmp_path):
    "The same for a network alone as in company of one with other data."
    exp = Experiment(Sum(), MLP(width=8), AdamW(.01), loss=MSE(), steps=4, seeds=2, data_seed='own')
    both, one = (regime_path(trained(e, tmp_path), n=10) for e in (exp, exp.but(seeds=(1,))))
    both = both[both.replica == 1].reset_index(drop=True)
    for k in ('drift', 'aligned', 'moved'): torch.testing.assert_close(*(torch.tensor(f[k]) for f in (both, one)), rtol=1e-4, atol=1e-6)


POSITIONS = lambda: Experiment(Largest(), linear(), AdamW(.01), steps=2, seeds=2)
NORMAL = lambda: Experiment(Sum(), normal(), AdamW(.01), loss=MSE(), steps=2)
NOT_FOR_ALL = {
    'a kernel of positions': (POSITIONS, lambda run: ntk(run.at(), data_of(run)[0]), r'ntk: model=.*here \(R, n, 5, 3\)'),
    'a gradient of positions': (POSITIONS, lambda run: jacobian(run.at(), data_of(run)[0]), r'jacobian: model=.*here \(R, n, 5, 3\)'),
    'features of positions': (POSITIONS, lambda run: ntk_features(run.at(), data_of(run)[0], 3), r'ntk_features: model=.*here \(R, n, 5, 3\)'),
    'a regime of positions': (POSITIONS, regime, 'regime: task=.*one with one target'),
    'a machine of positions': (POSITIONS, kernel_accuracy, 'kernel_accuracy: task='),
    'a machine of vectors': (NORMAL, kernel_accuracy, 'kernel_accuracy: task='),
    'margins of vectors': (NORMAL, spread, 'margins: y='),
    'a kernel of a batch': (NORMAL, lambda run: ntk(run.at(), data_of(run)[0]), 'compare the examples of a batch'),
    'a missing tensor': (POSITIONS, lambda run: relevance(run, 1), "relevance: tensor='W0'"),
    'activations that are not noted': (POSITIONS, sparsity, 'sparsity: model='),
}


@pytest.mark.parametrize('name', NOT_FOR_ALL)
def test_what_an_analysis_cannot_take_is_refused(name, tmp_path):
    exp, analyse, says = NOT_FOR_ALL[name]
    run = trained(exp(), tmp_path)
    with pytest.raises(ConfigError, match=says): analyse(run)


@config
class Next(Task):
    "The distribution of what comes after a token."
    train_frac:float = real(.5, low=0, high=1)
    vocab, length, outputs, target, target_shape = 8, 1, 8, 'distribution', (8,)
    def examples(self): return torch.arange(8)[:, None], torch.eye(8).roll(1, 1)


def test_swapped_embeddings_are_judged_as_in_training(tmp_path):
    run = trained(Experiment(Next(), gpt(d=8, heads=2, mlp=8), AdamW(.01), steps=2, seeds=2), tmp_path)
    f = swap(run)
    assert f[f.replica == f.other].accuracy.tolist() == run.history[(run.history.step == 2) & (run.history.split == 'test')].accuracy.tolist()


@pytest.mark.parametrize('task, noise, says', [
    (ModularArithmetic(p=11), LabelNoise(), 'as the targets are classes'), (Shares(), LabelNoise(), 'as the targets are distributions'),
    (Scaled(), LabelNoise(kind='flip'), 'as the targets are not signs')])
def test_label_noise_that_targets_cannot_take_is_refused_at_once(task, noise, says):
    loss = dict(real=MSE(), sign=Logistic()).get(task.target, CrossEntropy())
    for optim in (chain(noise, SGD(.1)), chain(LabelNoise(), chain(noise, SGD(.1)))):
        with pytest.raises(ConfigError, match=says): Experiment(task, MLP(), optim, loss=loss)


@pytest.mark.parametrize('task, noise', [(Scaled(), LabelNoise(std=.1)), (Signs(), LabelNoise(kind='flip', prob=.1)), (Sum(), LabelNoise(std=.1))])
def test_label_noise_of_several_numbers(task, noise, tmp_path):
    "Learnt all the same; and the same in company and alone."
    exp = Experiment(task, linear(), chain(noise, SGD(.05)), loss=MSE(), steps=80, seeds=3)
    run = trained(exp, tmp_path/'together')
    first, last = (run.history[(run.history.split == 'test') & (run.history.step == t)].loss.to_numpy() for t in (0, 80))
    assert (last < .9*first).all()
    alone = trained(exp.but(seeds=(2,)), tmp_path/'alone').at().params
    assert all(torch.equal(v[2], alone[k][0]) for k, v in run.at().params.items())


def test_the_laboratory_says_which_pictures_there_are_none_of(tmp_path):
    for exp, drawn in ((POSITIONS(), False), (NORMAL(), False), (Experiment(Pictures(), layers(), AdamW(), steps=2, seeds=2, data_seed='own'), True)):
        film = Film(trained(exp, tmp_path))
        assert [film.examples(s, 1)[0].shape[1:] for s in ('train', 'test')] == [exp.task.shape]*2
        for page in (shot(film, 'says', 1, 2), shot(film, 'margin', 1, 2), kernel_or_rich(film, 1)): assert ('<svg' in page) == drawn and ('one class, sign or number' in page) != drawn

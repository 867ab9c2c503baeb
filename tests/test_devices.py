"A step of everything on `meta`, where tensors have shapes and no numbers: whatever sits on a fixed device fails there, on every machine."
import grok_nb.all
import pytest
import torch
from grok_nb.all import AdamW, ConfigError, DiagonalNet, Experiment, MLP, MSE, ModularArithmetic, config, fit, make_bank
from grok_nb.models.bank import Bank, Model
from grok_nb.models.embed import Embedding
from grok_nb.models.module import network
from grok_nb.tasks.config import Config
from grok_nb.tasks.linear import SparseLinear
from grok_nb.train.checkup import built_in, checkup, meta_step, small_experiments
from grok_nb.train.filters import Filter, LossNormalised, chain
from grok_nb.train.members import load_data
from grok_nb.train.losses import Loss
from grok_nb.train.optim import Optimiser
from grok_nb.train.penalties import Penalty
from grok_nb.train.probes import Snapshot, Probe, answers
from torch import nn

tokens, vectors = ModularArithmetic(p=5), SparseLinear(dim=6, train=5, test=4)
base = Experiment(tokens, MLP(width=4), AdamW(), steps=2, seeds=2)
sparse = Experiment(SparseLinear(dim=6, train=5, test=4, inputs='gauss', labels='real', weights='ones'), DiagonalNet(), AdamW(), steps=2, seeds=2, loss=MSE())


@network
def linear(task): return nn.Sequential(nn.Embedding(task.vocab, 3), nn.Flatten(), nn.Linear(6, task.outputs))


def kinds(kind): return pytest.mark.parametrize('cls', built_in(kind).values(), ids=list(built_in(kind)))


def test_no_kind_is_forgotten():
    for kind in (Model, Optimiser, Filter, Loss, Penalty, Probe):
        offered = {n for n in grok_nb.all.__all__ if isinstance(c := getattr(grok_nb.all, n), type) and issubclass(c, kind) and hasattr(c, '__dataclass_fields__')}
        names = {c.__name__ for c in built_in(kind).values()}
        assert {getattr(grok_nb.all, n).__name__ for n in offered} <= names and names, kind
        known = {n for n,c in Config._known.items() if c.__module__.startswith('grok_nb.') and issubclass(c, kind) and '__dataclass_fields__' in vars(c)}
        assert known == set(built_in(kind))


@kinds(Model)
@pytest.mark.parametrize('more', [{}, dict(data_seed=(0, 1)), dict(batch=2)], ids=['shared', 'own inputs', 'minibatches'])
@pytest.mark.parametrize('dtype', ['float32', 'float64'])
def test_a_step_of_every_model(cls, more, dtype):
    for exp in small_experiments(cls, dtype=dtype, **more): meta_step(exp)


def test_a_step_of_a_module():
    meta_step(base.but(model=linear()))
    if 'Difference' in built_in(Model):
        both = built_in(Model)['Difference'](linear())
        meta_step(base.but(model=both))
        assert not any('module:' in k for k in make_bank(both, tokens).trained)


@pytest.mark.parametrize('inner', [linear(), MLP(width=4, train='last'), built_in(Model)['Transformer'](d=8, heads=2, mlp=4)], ids=['module', 'last layer', 'transformer'])
def test_a_step_of_what_remembers_its_start(inner):
    scaled, tangent = (built_in(Model)[k] for k in ('Scaled', 'Linearised'))
    for model in (scaled(inner, (1., 4.)), tangent(inner, 'start'), tangent(scaled(inner, (1., 4.))), scaled(tangent(inner), (1., 4.))):
        meta_step(base.but(model=model, data_seed='own'))         # a factor for each replica becomes a tensor: on which device?


@kinds(Embedding)
def test_every_embedding(cls):
    small = {k: 3 for k in ('size', 'rank') if k in cls.__dataclass_fields__}
    try: model = MLP(width=4, embed=cls(**small))
    except ConfigError as e: pytest.skip(str(e))
    meta_step(base.but(model=model))


def optimiser(cls):
    if cls.__name__ == 'Chain': return chain(AdamW())
    return cls()


@kinds(Optimiser)
def test_a_step_of_every_optimiser(cls):
    opt = optimiser(cls)
    meta_step(base.but(optim=opt))
    for f in ('lr', 'wd', 'momentum'):                       # one value for each replica becomes a tensor: on which device?
        if f in cls.__dataclass_fields__: meta_step(base.but(optim=opt.but({f: (.1, .2)})))
    meta_step(base.but(optim=opt, dtype='float64'))


variants = dict(Cosine=[dict(steps=9)], Doubling=[dict(at=(1,)), dict(every=1, times=3)], Grokfast=[dict(kind='ema'), dict(kind='ma')],
                LabelNoise=[dict(kind='gauss'), dict(kind='flip')])


@kinds(Filter)
def test_a_step_of_every_filter(cls):
    for fields in variants.get(cls.__name__, [{}]):
        assert any([stepped(dict(optim=chain(cls(**fields), AdamW())), task, loss()) for task in (tokens, vectors) for loss in built_in(Loss).values()])


def stepped(more, task, loss):
    "Take a step, if the parts suit each other; not every loss and task suits every filter."
    try: meta_step(base.but({'task': task, 'loss': loss, **more}))
    except ConfigError: return False
    return True


@kinds(Loss)
def test_a_step_of_every_loss(cls):
    loss = cls()
    for task in (tokens, vectors):
        if task.target in loss.targets: return meta_step(base.but(task=task, loss=loss))
    pytest.skip(f'no small task has targets {loss.targets}')


@kinds(Penalty)
def test_a_step_with_every_penalty(cls):
    done = []
    for model in built_in(Model).values():
        for exp in small_experiments(model):
            try: meta_step(exp.but(penalty=(cls(),)))
            except ConfigError: continue
            done.append(exp)
    assert done


@kinds(Probe)
def test_every_probe(cls):
    exp = sparse if cls.__name__ == 'Recovery' else base              # it knows the truth of one task only
    start, data = make_bank(exp.model, exp.task, (0, 1), device='meta'), load_data(exp, 'meta')
    opt = chain(LossNormalised(), AdamW())
    snapshot = Snapshot(start, start, data, exp.task, 1, opt, opt.init(start.trained))
    for v in answers((cls(),), snapshot).values(): assert v.device.type == 'meta' and v.shape == (2,)


def test_mixed_devices_are_refused_in_a_sentence():
    here, there = make_bank(base.model, tokens), make_bank(base.model, tokens, device='meta')
    x = tokens.data()[0]
    with pytest.raises(ConfigError, match="x='meta' is not allowed; x must be on cpu, like the parameters"): here(x.to('meta'))
    with pytest.raises(ConfigError, match="x='cpu' is not allowed; x must be on meta, like the parameters"): there(x)
    with pytest.raises(ConfigError, match='one that this machine has'): fit(base, device='meta')


def test_it_finds_what_is_on_a_fixed_device():
    @config
    class Forgetful(AdamW):
        "Keeps its state on the CPU."
        def init(self, params): return {k: torch.zeros(v.shape) for k,v in super().init(params).items()}

    @config
    class Fixed(MLP):
        "Looks its tables up on the CPU."
        def forward(self, params, x): return super().forward(params, x) + torch.ones(5)

    fit_here = Bank(Fixed(width=4), make_bank(Fixed(width=4), tokens).params)(tokens.data()[0])
    assert fit_here.shape == (1, 25, 5)
    for bad in (dict(optim=Forgetful()), dict(model=Fixed(width=4))):
        with pytest.raises((RuntimeError, NotImplementedError, ConfigError)): meta_step(base.but(bad))


def test_the_checkup_says_what_was_exercised():
    said = dict(checkup())
    assert said['training on cpu'] == 'works' and all(said[f'meta step of {n}'] == 'works' for n in built_in(Model))
    if not torch.cuda.is_available(): assert said['CUDA capture'] == 'not exercised: no CUDA device'

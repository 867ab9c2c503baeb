"Runs that go on with the optimiser's state of others: leg by leg, stopped between, and after those others went on"
import pytest

from grok_nb.all import AdamW, Continued, Experiment, MLP, ModularArithmetic, Norms, Stop, WarmUp, chain, fit, sweep
from grok_nb.train.events import listening
from same import tables, tensors

first = Experiment(ModularArithmetic(p=7, train_frac=.8), MLP(width=8, act='square', dropout=.2), chain(WarmUp(25), AdamW(lr=.03)),
                   steps=10, seeds=2, batch=9, probes=(Norms(),))


def then(exp): return first.but(start=Continued(exp, moments=True))


def alike(a, b):
    "Do two runs end with the same weights?"
    tensors(a.at().params, b.at().params, 'weights')


@pytest.fixture
def new(tmp_path_factory): return lambda: tmp_path_factory.mktemp('store')


def test_legs_are_the_longer_run(new):
    "Warm-up, batches and noise go by the steps of all legs together."
    third = then(then(first))
    assert third.start.steps_before == 20 and then(first.but(start=Continued(first))).start.steps_before == 10
    alike(fit(third, new()), fit(first.but(steps=30), new()))
    alike(fit(then(third), new()), fit(first.but(steps=40), new()))


@pytest.mark.parametrize('exp', [then(first), then(first).but(probes=())], ids=['probes', 'none'])
def test_what_was_begun_needs_its_start_no_more(exp, new, capsys):
    store, whole = new(), fit(exp, new())
    fit(exp, store, stop=Stop(None, until=4))
    fit(exp.start.before.but(steps=30), store)
    again = fit(exp, store)
    assert 'trained again' not in capsys.readouterr().err
    alike(again, whole)
    tables(again.history, whole.history)
    if exp.probes: tables(again.probes, whole.probes)


@pytest.mark.parametrize('train', [fit, lambda e, store: sweep([e], store=store, progress=False).run(0)], ids=['fit', 'sweep'])
def test_a_start_whose_optimiser_went_on_is_trained_again(train, new, capsys):
    "In silence for those who listen: its end is told once."
    store, exp, ends = new(), then(first), []
    fit(first, store)
    fit(first.but(steps=30), store)
    with listening(lambda e: ends.append(e.exp.id) if e.run else None): run = train(exp, store)
    alike(run, fit(exp, new()))
    assert ends == [first.id, exp.id]
    assert f"the optimiser's last state of {first.id} is not in the store" in capsys.readouterr().err
    assert fit(first.but(steps=30), store).cached

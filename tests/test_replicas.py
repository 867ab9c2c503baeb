"The same experiment alone and in a bank, at the size of the demo."
import pandas as pd
import pytest
import torch
from grok_nb.all import Difference, fit, preset
from grok_nb.models.linearised import Linearised
from grok_nb.models.scaled import Scaled
from same import tables


def history(exp, store, replica):
    h = fit(exp, store, device='cpu').history
    return h[h.replica == replica].drop(columns='replica').reset_index(drop=True)


@pytest.mark.parametrize('dtype, tolerance', [('float32', 2e-4), ('float64', 1e-10)])
def test_one_replica_and_eight_agree(tmp_path, dtype, tolerance):
    eight = preset('modular-addition').but(steps=60, keep=0, dtype=dtype)
    for r in (0, 5): pd.testing.assert_frame_equal(history(eight, tmp_path/'bank', r), history(eight.but(seeds=(r,)), tmp_path/'alone', 0), rtol=tolerance, atol=tolerance)


def test_rates_of_their_own_reach_their_replicas(tmp_path):
    exp = preset('modular-addition').but(steps=40, keep=0, dtype='float64', seeds=(0, 0, 0), lr=(.01, .01, .002), wd=(.3, 3., .3))
    for r,(lr,wd) in enumerate([(.01, .3), (.01, 3.), (.002, .3)]):
        pd.testing.assert_frame_equal(history(exp, tmp_path/'bank', r), history(exp.but(seeds=(0,), lr=lr, wd=wd), tmp_path/'alone', 0), rtol=1e-10, atol=1e-10)
    norms = fit(exp, tmp_path/'bank').at(40).params['W0'].flatten(1).norm(dim=1)
    assert len({round(n, 3) for n in norms.tolist()}) == 3 and norms[1] < norms[0]


alphas = (1., 4., 16.)
wraps = {'scaled': lambda m, a: Scaled(m, a), 'scaled difference': lambda m, a: Scaled(Difference(m), a, centred=False),
         'tangent': lambda m, a: Linearised(Scaled(m, a)), 'tangent from its start': lambda m, a: Linearised(Scaled(m, a), 'start')}


@pytest.mark.parametrize('wrap', wraps.values(), ids=list(wraps))
def test_a_network_that_remembers_its_start_agrees_with_itself_alone(tmp_path, wrap):
    exp = preset('modular-addition').but(steps=20, keep=0, dtype='float64', seeds=(0, 0, 3), data_seed='own', p=11, width=16, wd=0.)
    bank = exp.but(model=wrap(exp.model, alphas))
    ends = []
    for r,a in enumerate(alphas):
        alone = exp.but(model=wrap(exp.model, a), seeds=(bank.init_seeds[r],))
        pd.testing.assert_frame_equal(history(bank, tmp_path/'bank', r), history(alone, tmp_path/'alone', 0), rtol=1e-10, atol=1e-10)
        ends.append(history(bank, tmp_path/'bank', r).loss.iloc[-1])
    assert len(set(ends)) == 3                                # alpha reached its replica


def test_same_result_whatever_was_set_before(tmp_path):
    exp = preset('modular-addition').but(steps=10, keep=0, seeds=2)
    torch.manual_seed(1)
    a = fit(exp, tmp_path/'a').history
    torch.manual_seed(2)
    torch.rand(100)
    tables(a, fit(exp, tmp_path/'b').history)

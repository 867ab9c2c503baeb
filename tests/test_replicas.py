"The same experiment alone and in a bank, at the size of the demo."
import pandas as pd
import pytest
import torch
from grok_nb.all import fit, preset


def history(exp, store, replica):
    h = fit(exp, store, device='cpu').history
    return h[h.replica == replica].drop(columns='replica').reset_index(drop=True)


@pytest.mark.parametrize('dtype, tolerance', [('float32', 2e-4), ('float64', 1e-10)])
def test_one_replica_and_eight_agree(tmp_path, dtype, tolerance):
    eight = preset('modular-addition').but(steps=60, keep=0, dtype=dtype)
    for r in (0, 5): pd.testing.assert_frame_equal(history(eight, tmp_path, r), history(eight.but(seeds=(r,)), tmp_path, 0), rtol=tolerance, atol=tolerance)


def test_rates_of_their_own_reach_their_replicas(tmp_path):
    exp = preset('modular-addition').but(steps=40, keep=0, dtype='float64', seeds=(0, 0, 0), lr=(.01, .01, .002), wd=(.3, 3., .3))
    for r,(lr,wd) in enumerate([(.01, .3), (.01, 3.), (.002, .3)]):
        pd.testing.assert_frame_equal(history(exp, tmp_path, r), history(exp.but(seeds=(0,), lr=lr, wd=wd), tmp_path, 0), rtol=1e-10, atol=1e-10)
    norms = fit(exp, tmp_path).at(40).params['W0'].flatten(1).norm(dim=1)
    assert len({round(n, 3) for n in norms.tolist()}) == 3 and norms[1] < norms[0]


def test_same_result_whatever_was_set_before(tmp_path):
    exp = preset('modular-addition').but(steps=10, keep=0, seeds=2)
    torch.manual_seed(1)
    a = fit(exp, tmp_path/'a').history
    torch.manual_seed(2)
    torch.rand(100)
    pd.testing.assert_frame_equal(a, fit(exp, tmp_path/'b').history, check_exact=True)

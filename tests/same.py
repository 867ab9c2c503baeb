"""Equal to the bit: all that two runs say, whatever their files are called and whenever they were written

Where the arithmetic promises no bits (PyTorch without MKL, or GROK_NB_ARITHMETIC=free) the same steps, and numbers that
agree up to rounding; the tests say so at their end."""
import numpy as np
import pandas as pd
import pytest
from grok_nb.tasks.arithmetic import reproducible
from grok_nb.train.experiment import replica_ids
from grok_nb.train.record import contents, find
from grok_nb.train.run import kept_for, view
from grok_nb.train.store import Store

exact = reproducible()                               # asked here, and nowhere else in the tests
needs_bits = pytest.mark.skipif(not exact, reason='the arithmetic of this process promises no bits')
ROUNDING = 1e-3                                      # of the largest number; a hundred times what was seen where company enters


def agree(a, b, what='', rounding=ROUNDING):
    "Two arrays: the same bits, where that is promised, else the same numbers up to rounding."
    a, b = np.asarray(a), np.asarray(b)
    assert a.shape == b.shape and (a.dtype == b.dtype or not exact), (what, a.dtype, b.dtype, a.shape, b.shape)
    if a.dtype == object: assert pd.Series(a).equals(pd.Series(b)), what
    elif exact or a.dtype.kind != 'f': assert a.tobytes() == b.tobytes(), what
    else: np.testing.assert_allclose(a, b, 0, rounding*np.abs(a[np.isfinite(a)]).max(initial=0), err_msg=str(what))


def tensors(a, b, what):
    "The same names and the same numbers."
    assert sorted(a) == sorted(b), what
    for k in a: agree(a[k].numpy(), b[k].numpy(), (what, k))


def tables(a, b, what=''):
    "The same columns, rows and numbers: frames, or what was measured of a replica."
    assert list(a) == list(b), what
    for k in a: agree(a[k], b[k], (what, k), .1 if k.endswith('accuracy') else ROUNDING)      # an example may fall to the other side


def same(a, b, goes_on=True):
    "Assert that two runs have measured and kept the same, and that the end of the one goes on like that of the other."
    exp = a.config
    assert exp.id == b.config.id and (a.finished, a.step, a.checkpoints, a.diverged) == (b.finished, b.step, b.checkpoints, b.diverged)
    tables(a.history, b.history, 'history')
    if exp.probes: tables(a.probes, b.probes, 'probes')
    each = [find(r.store, list(replica_ids(exp))) for r in (a, b)]
    for i, key in enumerate(replica_ids(exp)):
        one, other = (f[key] for f in each)
        tables(*({k: v.astype(float) for k, v in view(r, exp).items()} for r in (one, other)), f'replica {i}')
        assert kept_for(one, exp) == kept_for(other, exp), f'replica {i}'
        for step in kept_for(one, exp):
            if step in one.kept: tensors(one.weights(step), other.weights(step), f'replica {i} at step {step}')
        if goes_on and one.step == other.step: late(one, other, f'the state of replica {i}', not has_momentum(exp, i))
    return a


def has_momentum(exp, i):
    m = getattr(getattr(exp.optim, 'optim', exp.optim), 'momentum', None)
    return m is None or bool(m[i] if isinstance(m, tuple) else m)


def late(one, other, what, plain):
    "What two replicas go on from. A plain one, without momentum, has a last step only in company of others that have some, and takes nothing of it."
    (step, params, opt), (also, params2, opt2) = one.goes_on(), other.goes_on()
    assert step == also, what
    tensors(params, params2, what), tensors(*({k: v for k, v in o.items() if not (plain and k.startswith('b.'))} for o in (opt, opt2)), what)


def left_behind(store):
    "What only a process at work may have in a store, or one that was killed: files, and replicas with an older state than their last."
    odd = ('names/.tmp-*', *(f'segments/{o}' for o in ('.tmp-*', '.gone-*', '.sweep-*', '*/.tmp-*', '*/claim.json', '*/.beat', '*/.lock', '*/slots.*')))
    files = sorted(str(f.relative_to(store)) for o in odd for f in store.glob(o))
    states = [k for c in contents(Store(store)) for k, s in zip(c.replicas['key'], c.replicas.get('state', ())) if s]
    return files + sorted(f'an older state of {k}' for k in set(states) if states.count(k) > 1)

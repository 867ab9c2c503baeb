"Equal to the bit: all that two runs say, whatever their files are called and whenever they were written."
import pandas as pd
from grok_nb.train.experiment import replica_ids
from grok_nb.train.record import contents, find
from grok_nb.train.run import kept_for, view
from grok_nb.train.store import Store


def tensors(a, b, what):
    assert sorted(a) == sorted(b), what
    for k in a: assert a[k].dtype == b[k].dtype and a[k].shape == b[k].shape and a[k].numpy().tobytes() == b[k].numpy().tobytes(), (what, k)


def measured(a, b, what):
    "Two tables of measurements: the same names and the same bits."
    assert list(a) == list(b), what
    for k in a: assert a[k].astype(float).tobytes() == b[k].astype(float).tobytes(), (what, k)


def same(a, b, goes_on=True):
    "Assert that two runs have measured and kept the same, and that the end of the one goes on like that of the other."
    exp = a.config
    assert exp.id == b.config.id and (a.finished, a.step, a.checkpoints, a.diverged) == (b.finished, b.step, b.checkpoints, b.diverged)
    pd.testing.assert_frame_equal(a.history, b.history, check_exact=True)
    if exp.probes: pd.testing.assert_frame_equal(a.probes, b.probes, check_exact=True)
    each = [find(r.store, list(replica_ids(exp))) for r in (a, b)]
    for i, key in enumerate(replica_ids(exp)):
        one, other = (f[key] for f in each)
        measured(view(one, exp), view(other, exp), f'replica {i}')
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
    odd = ('names/.tmp-*', *(f'segments/{o}' for o in ('.tmp-*', '.gone-*', '.sweep-*', '*/.tmp-*', '*/claim.json', '*/.beat', '*/.lock', '*/seats.*')))
    files = sorted(str(f.relative_to(store)) for o in odd for f in store.glob(o))
    states = [k for c in contents(Store(store)) for k, s in zip(c.replicas['key'], c.replicas.get('state', ())) if s]
    return files + sorted(f'an older state of {k}' for k in set(states) if states.count(k) > 1)

"A run that is killed ends as if it had not been; two processes do not disturb each other."
import os
import random
import time

import pytest
from conftest import children
from grok_nb.all import Free, Store, fit, transfer
from grok_nb.train.fit import watching
from waiting import LIMIT, until

pytestmark = pytest.mark.skipif(os.name == 'nt', reason='needs SIGKILL')
times = ('.lock', 'manifest.json')


def train(exp, store, of, most):
    "A commit at every step, so that there are many chances to hit one; after `most` steps of the experiment `of` it waits to be killed."
    with watching(ask=lambda e, step: 'hold' if e.id == of and step >= most else ''): fit(exp, store, device='cpu', progress=False, snapshot=0)


def committed(exp, store):
    "The step at which a run stands on disk; -1 before its first commit."
    folder = Store(store).folder(exp)
    return (folder.path.exists() and folder.manifest() or dict(step=-1))['step']


def kill(exp, store, at, most, of=None, wait=0.):
    "Train until step `at` of `of` is on disk, and a little more; it comes to `most` steps if the kill is late. The step that is then on disk."
    of = of or exp
    child = children.Process(target=train, args=(exp, store, of.id, most), daemon=True)
    child.start()
    try:
        until(lambda: committed(of, store) >= at or not child.is_alive(), f'step {at} is on disk', every=.01)
        time.sleep(wait)
    finally:
        child.kill()                                                  # SIGKILL, unless it has just ended
        child.join()
    return committed(of, store)


def test_twenty_kills_at_random_moments(small, reference, tmp_path, picture):
    dice = random.Random()
    for i in range(20):
        store, at = tmp_path/str(i), dice.randrange(small.steps - 1)
        by_clock = i % 4 == 3                                         # where that is depends on the machine: it may even have ended
        at, wait, most = (0, dice.uniform(0, 1), small.steps + 1) if by_clock else (at, 0., small.steps - 1)
        found = kill(small, store, at, most, wait=wait)
        assert at <= found <= most                                    # it began, and if there was a last step for it to wait for, it did not end

        run = fit(small, store, device='cpu')
        assert run.finished
        assert picture(run.path, times) == picture(reference.path, times), f'killed at step {found}'


def test_killed_again_and_again_still_arrives(small, reference, tmp_path, picture):
    dice, steps = random.Random(), [0]
    while steps[-1] < small.steps - 1:
        at = min(steps[-1] + dice.randrange(1, 12), small.steps - 1)
        steps.append(kill(small, tmp_path, at, min(at + 5, small.steps - 1)))
    assert len(steps) >= 4 and steps == sorted(steps), steps          # it was killed, and never fell back
    run = fit(small, tmp_path, device='cpu')
    assert picture(run.path, times) == picture(reference.path, times)


def test_a_transfer_killed_in_either_stage_arrives_at_the_same(small, tmp_path, picture):
    weak = small.but({'model.embed': Free(4), 'steps': small.steps//2})
    exp = transfer(weak, weak.but({'model.embed': Free(8), 'steps': small.steps//2}), at='end')
    reference = fit(exp, tmp_path/'reference', device='cpu')
    store = tmp_path/'run'
    for stage in (weak, exp):
        last = stage.steps - 1
        for at in (0, random.randrange(1, last), last):
            assert at <= kill(exp, store, at, last, stage) <= last
            assert (store/exp.id).exists() == (stage is exp)          # killed while the weak network was trained, and later
    run = fit(exp, store, device='cpu')
    for e in (exp, weak): assert picture(store/e.id, times) == picture(tmp_path/'reference'/e.id, times)
    assert run.finished and reference.finished


def _fit_and_tell(exp, store, gate, out):
    gate.wait()
    run = fit(exp, store, device='cpu', progress=False)
    out.put((run.cached, run.finished, len(run.history)))


def test_two_processes_train_it_once(small, reference, tmp_path, picture):
    gate, out = children.Barrier(2), children.Queue()
    both = [children.Process(target=_fit_and_tell, args=(small, tmp_path, gate, out), daemon=True) for _ in range(2)]
    for p in both: p.start()
    said = [out.get(timeout=LIMIT) for _ in both]
    for p in both: p.join()
    assert sorted(cached for cached,_,_ in said) == [False, True]
    assert {(f, n) for _,f,n in said} == {(True, len(reference.history))}
    assert picture(tmp_path/small.id, times) == picture(reference.path, times)

"A run that is killed ends as if it had not been; two processes do not disturb each other."
import os
import random
import time

import pytest
from conftest import children
from grok_nb.all import Free, Store, fit, open_run, transfer
from grok_nb.train.events import listening
from grok_nb.train.experiment import replica_ids
from grok_nb.train.record import find
from same import left_behind, same
from waiting import LIMIT, until

ALL = bool(os.environ.get('GROK_NB_KILL'))           # as `make test-kill` sets it: all twenty, else some
pytestmark = pytest.mark.skipif(os.name == 'nt', reason='needs SIGKILL')


def train(exp, store, of, most):
    "A commit at every step, so that there are many chances to hit one; after `most` steps of the experiment `of` it waits to be killed."
    with listening(ask=lambda e, step: 'hold' if e.id == of and step >= most else ''): fit(exp, store, device='cpu', progress=False, commit_every=0)


def committed(exp, store):
    "The step at which a run stands on disk; -1 before its first commit."
    found = find(Store(store), list(replica_ids(exp)))
    return min(r.step for r in found.values()) if len(found) == len(exp) else -1


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


def test_twenty_kills_at_random_moments(small, reference, tmp_path):
    dice = random.Random()
    for i in range(20 if ALL else 6):
        store, at = tmp_path/str(i), dice.randrange(small.steps - 1)
        by_clock = i % 4 == 3                                         # where that is depends on the machine: it may even have ended
        at, wait, most = (0, dice.uniform(0, 1), small.steps + 1) if by_clock else (at, 0., small.steps - 1)
        found = kill(small, store, at, most, wait=wait)
        assert at <= found <= most                                    # it began, and if there was a last step for it to wait for, it did not end

        run = fit(small, store, device='cpu')
        assert run.finished and same(run, reference), f'killed at step {found}'
        assert left_behind(store) == [], f'killed at step {found}'


def test_killed_again_and_again_still_arrives(small, reference, tmp_path):
    dice, steps = random.Random(), [0]
    while steps[-1] < small.steps - 1:
        at = min(steps[-1] + dice.randrange(1, 12), small.steps - 1)
        steps.append(kill(small, tmp_path, at, min(at + 5, small.steps - 1)))
    assert len(steps) >= 4 and steps == sorted(steps), steps          # it was killed, and never fell back
    run = same(fit(small, tmp_path, device='cpu'), reference)
    assert len(run.environments) == len(steps) and left_behind(tmp_path) == []     # each start is known, and nothing else is left of it


def test_a_transfer_killed_in_either_stage_arrives_at_the_same(small, tmp_path):
    weak = small.but({'model.embed': Free(4), 'steps': small.steps//2})
    exp = transfer(weak, weak.but({'model.embed': Free(8), 'steps': small.steps//2}), at='end')
    reference = fit(exp, tmp_path/'reference', device='cpu')
    store = tmp_path/'run'
    for stage in (weak, exp):
        last = stage.steps - 1
        for at in (0, random.randrange(1, last), last):
            assert at <= kill(exp, store, at, last, stage) <= last
            assert any((store/'segments').glob(f'{exp.id}.*')) == (stage is exp)          # killed while the weak network was trained, and later
    run = same(fit(exp, store, device='cpu'), reference)
    same(open_run(weak, store), open_run(weak, tmp_path/'reference'))
    assert run.finished and left_behind(store) == []


def _fit_and_tell(exp, store, gate, out):
    gate.wait()
    run = fit(exp, store, device='cpu', progress=False)
    out.put((run.cached, run.finished, len(run.history)))


def test_two_processes_train_it_once(small, reference, tmp_path):
    gate, out = children.Barrier(2), children.Queue()
    both = [children.Process(target=_fit_and_tell, args=(small, tmp_path, gate, out), daemon=True) for _ in range(2)]
    for p in both: p.start()
    said = [out.get(timeout=LIMIT) for _ in both]
    for p in both: p.join()
    assert sorted(cached for cached,_,_ in said) == [False, True]
    assert {(f, n) for _,f,n in said} == {(True, len(reference.history))}
    same(open_run(small, tmp_path), reference)

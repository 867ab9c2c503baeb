"A run that is killed ends as if it had not been; two processes do not disturb each other."
import os
import random
import time

import pytest
from conftest import children
from grok_nb.all import Free, Store, fit, transfer

pytestmark = pytest.mark.skipif(os.name == 'nt', reason='needs SIGKILL')
times = ('.lock', 'manifest.json')


def train(exp, store): fit(exp, store, device='cpu', progress=False, snapshot=0)      # a commit at every step: many chances to hit one


def test_twenty_kills_at_random_moments(small, tmp_path, picture):
    reference = fit(small, tmp_path/'reference', device='cpu')
    start = time.monotonic()
    train(small, tmp_path/'timing')
    length = time.monotonic() - start

    dice, halfway = random.Random(), 0
    for i in range(20):
        store, wait = tmp_path/str(i), dice.uniform(0, length)
        child = children.Process(target=train, args=(small, store))
        child.start()
        while not (store/small.id).exists(): time.sleep(.001)         # from the very first trace on disk
        time.sleep(wait)
        child.kill()                                                  # SIGKILL, unless it has just ended
        child.join()
        m = Store(store).folder(small).manifest()
        halfway += m is not None and not m['finished']

        run = fit(small, store, device='cpu')
        assert run.finished
        assert picture(run.path, times) == picture(reference.path, times), f'killed after {wait:.4f} s'
    assert halfway >= 5, f'only {halfway} of 20 kills came between the first commit and the end: the test shows too little'


def test_killed_again_and_again_still_arrives(small, tmp_path, picture):
    reference = fit(small, tmp_path/'reference', device='cpu')
    dice, steps, folder = random.Random(), [], Store(tmp_path/'run').folder(small)
    for _ in range(200):
        child = children.Process(target=train, args=(small, tmp_path/'run'))
        child.start()
        child.join(dice.uniform(.05, .3))
        if child.exitcode == 0: break
        child.kill()
        child.join()
        steps.append(((folder.path.exists() and folder.manifest()) or dict(step=0))['step'])
    assert len(steps) >= 2 and steps == sorted(steps), steps          # it was killed, and never fell back
    run = fit(small, tmp_path/'run', device='cpu')
    assert picture(run.path, times) == picture(reference.path, times)


def test_a_transfer_killed_in_either_stage_arrives_at_the_same(small, tmp_path, picture):
    weak = small.but({'model.embed': Free(4), 'steps': small.steps//2})
    exp = transfer(weak, weak.but({'model.embed': Free(8), 'steps': small.steps//2}), at='end')
    reference = fit(exp, tmp_path/'reference', device='cpu')
    store, seen = tmp_path/'run', []
    for first in (weak, exp):                                         # from the very first trace of either stage on disk
        for wait in (0, .02, .1):
            child = children.Process(target=train, args=(exp, store))
            child.start()
            while child.is_alive() and not (store/first.id).exists(): time.sleep(.001)
            time.sleep(wait)
            child.kill()
            child.join()
            seen.append(tuple((store/e.id).exists() for e in (weak, exp)))
    assert (True, False) in seen and (True, True) in seen, seen       # killed while the weak network was trained, and later
    run = fit(exp, tmp_path/'run', device='cpu')
    for e in (exp, weak): assert picture(tmp_path/'run'/e.id, times) == picture(tmp_path/'reference'/e.id, times)
    assert run.finished and reference.finished


def _fit_and_tell(exp, store, gate, out):
    gate.wait()
    run = fit(exp, store, device='cpu', progress=False)
    out.put((run.cached, run.finished, len(run.history)))


def test_two_processes_train_it_once(small, tmp_path, picture):
    reference = fit(small, tmp_path/'reference', device='cpu')
    gate, out = children.Barrier(2), children.Queue()
    both = [children.Process(target=_fit_and_tell, args=(small, tmp_path/'shared', gate, out)) for _ in range(2)]
    for p in both: p.start()
    said = [out.get(timeout=60) for _ in both]
    for p in both: p.join()
    assert sorted(cached for cached,_,_ in said) == [False, True]
    assert {(f, n) for _,f,n in said} == {(True, len(reference.history))}
    assert picture(tmp_path/'shared'/small.id, times) == picture(reference.path, times)

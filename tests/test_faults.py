"""A fault or a kill at every write: what is done again afterwards ends as if nothing had happened, and nothing is left behind

A sample of the writes by itself, all of them with GROK_NB_KILL=1, which is what `make test-kill` sets."""
import builtins
import errno
import io
import multiprocessing
import os
import random
import shutil
import traceback
import warnings
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import pytest
from grok_nb.all import AdamW, Experiment, Free, MLP, ModularArithmetic, Stop, Store, StoreError, fit, open_run, runs, search, sweep, transfer
from grok_nb.train.experiment import replica_ids
from grok_nb.train.record import find
from same import left_behind, same
from waiting import LIMIT, until

pytestmark = pytest.mark.skipif(os.name == 'nt', reason='needs fork and SIGKILL')
ALL = bool(os.environ.get('GROK_NB_KILL'))
fork = multiprocessing.get_context('fork')           # a child has the tests, torch and what is patched: some milliseconds each


# --- to fail or to die at the k-th write ---------------------------------------------------------------------------

def writes(name, args, kw):
    "Would this call change a file?"
    if name == 'io.open': return any(c in kw.get('mode', args[1] if len(args) > 1 else 'r') for c in 'wxa+')
    if name == 'os.open': return bool((args[1] if len(args) > 1 else 0) & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))
    return True


def concerns(store, args, kw):
    "Is it about this store? What speaks of an open file or folder is."
    return 'dir_fd' in kw or isinstance(args[0], int) or str(args[0]).startswith(str(store))


class Torn:
    "A file of which `act` is told in the middle of every `write`."
    def __init__(self, file, act): self.file, self.act = file, act
    def __getattr__(self, name): return getattr(self.file, name)
    def __enter__(self): return self
    def __exit__(self, *error): return self.file.__exit__(*error)

    def write(self, data):
        self.file.write(data[:len(data)//2])
        self.file.flush()
        self.act()
        return len(data)//2 + self.file.write(data[len(data)//2:])


@contextmanager
def at_write(store, act):
    "While the block lasts, call `act(k)` before the k-th call that changes something in a store, or in the middle of it where that is a `write`."
    number, places = count(1), [(builtins, 'open', 'io.open'), (io, 'open', 'io.open')]
    places += [(os, k, f'os.{k}') for k in ('open', 'replace', 'rename', 'fsync', 'link', 'unlink', 'remove', 'mkdir', 'rmdir')]
    def counted(real, name):
        def call(*args, **kw):
            counts = writes(name, args, kw) and concerns(store, args, kw)
            if counts: act(next(number))
            made = real(*args, **kw)
            return Torn(made, lambda: act(next(number))) if counts and name == 'io.open' else made
        return call
    with pytest.MonkeyPatch.context() as m:
        for where, k, name in places: m.setattr(where, k, counted(getattr(where, k), name))
        yield


def full(at, reached):
    "A disk that is full at the k-th write."
    def act(k):
        if k == at: reached.append(k); raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    return act


def dying(store, at, do):
    "A process that dies at the k-th write."
    def act(k):
        if k == at: os._exit(9)
    with at_write(store, act), warnings.catch_warnings(): do(store)


# --- what is done --------------------------------------------------------------------------------------------------

tiny = Experiment(ModularArithmetic(p=7, train_frac=.6), MLP(width=4), AdamW(lr=.01), steps=2, seeds=2, keep=(1,), keep_at='train >= .01')
weak = tiny.but({'model.embed': Free(2), 'keep': ()})
handed = transfer(weak, weak.but({'model.embed': Free(3), 'steps': 2}), at='end')
rates = [tiny.but(lr=lr) for lr in (.01, .02, .03)]
how = dict(device='cpu', progress=False, commit_every=0)


def quick(exp, store): return fit(exp, store, 'cpu', progress=False)


@dataclass
class Deed:
    "Something that writes, on top of what was there, and all runs that are there afterwards; `gone` ones are not. Can they go on?"
    do: object
    there: tuple
    before: object = lambda store: None
    gone: tuple = ()
    goes_on: bool = True


def wide(store): return sweep(rates[:2], store=store, stop=Stop(None), slots=3, **how)
def remove(exp): return lambda store: Store(store).remove(exp.id)
def of_one_and_of_all(store): return [Store(store).drop_states(*i) for i in ([rates[0].id], [])]


deeds = dict(
    fit=Deed(lambda store: fit(tiny, store, **how), (tiny,)),
    longer=Deed(lambda store: fit(tiny.but(steps=3), store, **how), (tiny.but(steps=3),), lambda store: quick(tiny, store)),
    sweep=Deed(wide, tuple(rates[:2])),
    shared=Deed(wide, tuple(rates[:2]), lambda store: quick(tiny.but(seeds=3), store)),
    transfer=Deed(lambda store: fit(handed, store, **how), (weak, handed)),
    search=Deed(lambda store: search(tiny, dict(lr=[.01, .02]), n=2, sampler='grid', least=1, store=store, device='cpu', commit_every=0), (tiny,)),
    rename=Deed(lambda store: Store(store).rename(tiny.id, 'mine'), (tiny,), lambda store: quick(tiny, store)),
    remove=Deed(remove(tiny), tuple(rates[1:]), lambda store: [quick(e, store) for e in rates], (tiny,)),
    remove_one=Deed(remove(rates[1]), (rates[0], rates[2]), lambda store: sweep(rates, store=store, device='cpu', progress=False), (rates[1],)),
    remove_most=Deed(lambda store: [Store(store).remove(e.id) for e in rates[1:] if e.id in set(runs(store).id)], (rates[0],),
                     lambda store: sweep(rates, store=store, device='cpu', progress=False), tuple(rates[1:])),
    register=Deed(lambda store: fit(tiny, store, **how), (tiny, tiny.but(seeds=3)), lambda store: quick(tiny.but(seeds=3), store)),
    register_some=Deed(wide, tuple(rates[:2]), lambda store: [quick(e.but(seeds=3), store) for e in rates[:2]]),
    drop_states=Deed(of_one_and_of_all, tuple(rates), lambda store: [wide(store), quick(rates[2], store)], goes_on=False),
    fold=Deed(lambda store: Store(store).fold(2), tuple(rates), lambda store: [quick(e, store) for e in rates]))


@pytest.fixture(params=deeds)
def name(request): return request.param


@pytest.fixture(scope='module')
def whole(tmp_path_factory):
    "Every experiment, trained without any trouble, in a store of its own."
    every = {e.id: e for d in deeds.values() for e in d.there}
    return {k: quick(e, tmp_path_factory.mktemp(k)) for k, e in every.items()}


@pytest.fixture(scope='module')
def stores(tmp_path_factory):
    "A function that gives a new store, as it is before a deed."
    made, number = {}, count()
    def store(name):
        if name not in made:
            made[name] = tmp_path_factory.mktemp(f'before-{name}')
            deeds[name].before(made[name])
        return Path(shutil.copytree(made[name], made[name].with_name(f'{name}-{next(number)}')))
    return store


def listed(store):
    "Everything there is, without a word of complaint."
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        return runs(store)


def repeat(deed, store, whole):
    "Do it again, undisturbed, and compare with what was never disturbed; the next who works there clears all else away."
    listed(store)
    with suppress(StoreError) if deed.gone else warnings.catch_warnings(): deed.do(store)       # it may be gone already
    there = set(listed(store).id)
    assert there >= {e.id for e in deed.there} and not there & {e.id for e in deed.gone}
    for e in deed.there: assert open_run(e, store).finished and same(open_run(e, store), whole[e.id], deed.goes_on)
    assert deed.goes_on or not any(r.goes_on() for r in find(Store(store), [k for e in deed.there for k in replica_ids(e)]).values())
    segment, _, lock = Store(store).claim('0'*16, ['0'*16])
    Store(store).release(segment, lock)
    assert left_behind(store) == []


def every(name, most=6):
    "All numbers from 1, or about every so many of them."
    return count(1, 1) if ALL else count(1 + random.Random(name).randrange(most), 7*most)


@contextmanager
def noted(wrong, k):
    "Note what is wrong, and go on: all that is, is told at once."
    try: yield
    except Exception as e: wrong.append(f'write {k}: {type(e).__name__}: {str(e)[:500]} {traceback.format_exc(limit=-3)}')


def failing(deed, store, k):
    "Do it with a disk that is full at the k-th write; was that reached? It is said in a sentence, or does not matter."
    reached = []
    with at_write(store, full(k, reached)), warnings.catch_warnings():
        warnings.simplefilter('ignore')
        try: deed.do(store)
        except StoreError as e: assert 'No space left' in str(e)
    return reached


def test_a_full_disk_at_every_write(name, stores, whole):
    wrong, deed = [], deeds[name]
    for k in every(name):
        store, reached = stores(name), True
        with noted(wrong, k): reached = failing(deed, store, k)
        with noted(wrong, k): repeat(deed, store, whole)
        shutil.rmtree(store)
        if not reached: break
    assert not wrong, '\n'.join([*wrong])


def test_a_kill_at_every_write(name, stores, whole):
    wrong, deed = [], deeds[name]
    for k in every(name):
        store = stores(name)
        p = fork.Process(target=dying, args=(store, k, deed.do), daemon=True)
        p.start()
        until(lambda: p.exitcode is not None, f'{name} is killed at write {k}, or ends', every=.005)
        with noted(wrong, k):
            assert p.exitcode in (0, 9)
            repeat(deed, store, whole)
        shutil.rmtree(store)
        if not p.exitcode: break
    assert not wrong, '\n'.join([*wrong])


# --- SIGKILL at random moments -------------------------------------------------------------------------------------

long = tiny.but(steps=40, keep=3)
slow = {'fit': (lambda store: fit(long, store, **how), (long,)),
        'sweep': (lambda store: sweep([long, long.but(lr=.02)], store=store, slots=2, **how), (long, long.but(lr=.02))),
        'search': (lambda store: search(long, dict(lr=[.01, .02]), n=2, sampler='grid', least=10, store=store, device='cpu', commit_every=0), (long,)),
        'transfer': (lambda store: fit(handed.but(steps=40), store, **how), (weak, handed.but(steps=40)))}


def telling(store, at, do, event):
    "Do it, and tell when the k-th write is reached."
    with at_write(store, lambda k: k == at and event.set()), warnings.catch_warnings(): do(store)


def number_of_writes(store, do):
    seen = []
    with at_write(store, seen.append): do(store)
    return seen[-1]


@pytest.mark.parametrize('kind', slow)
def test_twenty_kills_at_random_moments(kind, tmp_path):
    (do, exps), dice = slow[kind], random.Random()
    n = number_of_writes(tmp_path/'whole', do)
    for i in range(20 if ALL else 2):
        store, reached, at = tmp_path/str(i), fork.Event(), dice.randrange(1, n)
        p = fork.Process(target=telling, args=(store, at, do, reached), daemon=True)
        p.start()
        until(lambda: reached.is_set() or p.exitcode is not None, f'{kind} comes to write {at}', every=.001)
        p.kill()
        p.join(LIMIT)
        listed(store)
        do(store)
        for e in exps: same(open_run(e, store), open_run(e, tmp_path/'whole'))
        segment, _, lock = Store(store).claim('0'*16, ['0'*16])
        Store(store).release(segment, lock)
        assert left_behind(store) == [], f'killed after write {at} of {n}'

"What a store must bear: a full disk, a reader beside a writer, a second process, a lost manifest, odd folders."
import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import warnings
from contextlib import contextmanager

import grok_nb.train.loop as engine
import pytest
from conftest import children, like_anybody, segment_of, with_other_words
from grok_nb.all import MSE, SGD, Store, StoreError, fit, open_run, runs
from grok_nb.tasks.config import to_dict
from grok_nb.train.experiment import replica_ids
from grok_nb.train.pool import Pool
from same import same
from waiting import LIMIT, ended, started, until

pytestmark = pytest.mark.skipif(os.name == 'nt', reason='needs SIGINT and umask')


def stopped(exp, store, monkeypatch, after=50):
    "A run that was left at some step."
    steps, real = iter(range(10**6)), Pool.step
    def fails(*a):
        if next(steps) == after: raise MemoryError
        real(*a)
    with monkeypatch.context() as m:
        m.setattr(Pool, 'step', fails)
        with pytest.raises(MemoryError): fit(exp, store, device='cpu', commit_every=0)


@pytest.mark.parametrize('nth', range(1, 40, 3))
def test_a_disk_that_fills_up_costs_nothing(small, reference, tmp_path, monkeypatch, nth):
    "The nth write fails; mended, the run ends as if nothing had happened."
    count, real = iter(range(1, 10**6)), os.fsync
    def full(fd):
        if next(count) == nth: raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(fd)
    monkeypatch.setattr(os, 'fsync', full)
    with pytest.raises(StoreError, match='No space left'): fit(small, tmp_path/'run', device='cpu', commit_every=0)
    assert not list((tmp_path/'run').rglob('.tmp-*'))
    monkeypatch.setattr(os, 'fsync', real)
    run = fit(small, tmp_path/'run', device='cpu')
    assert run.finished and same(run, reference)


@pytest.mark.parametrize('commits', ['one', 'many'])
def test_a_lost_manifest_does_not_start_the_run_again(small, tmp_path, picture, monkeypatch, commits):
    if commits == 'one': fit(small := small.but(steps=1, keep=0), tmp_path, device='cpu')
    else: stopped(small, tmp_path, monkeypatch)
    (segment_of(tmp_path)/'manifest.json').unlink()
    before = picture(tmp_path, ('.lock',))
    with pytest.raises(StoreError, match='manifest.json is missing'): fit(small, tmp_path, device='cpu')
    with pytest.raises(StoreError, match='manifest.json is missing'): open_run(small, tmp_path)
    assert picture(tmp_path, ('.lock',)) == before


@pytest.mark.parametrize('commit_every', [1e12, float('inf')])
def test_a_run_without_snapshots_killed_in_its_last_commit_ends_the_same(small, reference, tmp_path, monkeypatch, commit_every):
    import grok_nb.train.store as store
    real = store.write_atomic
    def killed(path, data):
        if path.name == 'manifest.json' and list(path.parent.glob('state.*')): raise KeyboardInterrupt
        real(path, data)
    with monkeypatch.context() as m:
        m.setattr(store, 'write_atomic', killed)
        with pytest.raises(KeyboardInterrupt): fit(small, tmp_path/'run', device='cpu', commit_every=commit_every)
    run = fit(small, tmp_path/'run', device='cpu', commit_every=commit_every)
    assert run.finished and same(run, reference)


def _follow(exp, store, gate, out):
    "Open and read the run over and over until it is finished."
    seen = []
    gate.set()
    try:
        while True:
            try: run = open_run(exp, store)
            except StoreError as e:
                if 'no run' in str(e) or 'no measurements yet' in str(e): continue
                raise
            seen.append(int(run.history.step.max()))
            runs(store), Store(store).bytes()
            if run.finished: return out.put(seen)
    except BaseException as e: out.put(repr(e))


def test_reading_while_another_process_writes(small, tmp_path):
    gate, out = children.Event(), children.Queue()
    reader = children.Process(target=_follow, args=(small, tmp_path, gate, out), daemon=True)
    reader.start()
    until(gate.is_set, 'the reader begins')
    fit(small, tmp_path, device='cpu', commit_every=0)
    seen = out.get(timeout=LIMIT)
    reader.join()
    assert isinstance(seen, list) and seen == sorted(seen) and seen[-1] == small.steps, seen


def test_a_run_that_was_opened_early_reads_what_there_is_now(small, tmp_path, monkeypatch):
    stopped(small, tmp_path, monkeypatch)
    early = open_run(small, tmp_path)
    assert early.step == 50
    done = fit(small, tmp_path, device='cpu')
    assert early.history.equals(done.history) and early.finished


def test_a_second_process_says_that_it_waits(small, tmp_path):
    code = ('import json, sys; import grok_nb.models.mlp, grok_nb.tasks.modular; '
            'from grok_nb.tasks.config import from_dict; from grok_nb.train.fit import fit; '
            'run = fit(from_dict(json.loads(sys.argv[1])), sys.argv[2], device="cpu"); print(run.cached)')
    store = Store(tmp_path)
    segment, _, lock = store.claim(small.id, list(replica_ids(small)))
    pipes = dict(stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    with started(sys.executable, '-c', code, json.dumps(to_dict(small)), tmp_path, **pipes) as p:
        give_up = threading.Timer(LIMIT, p.kill)
        give_up.start()
        said = p.stderr.readline()
        give_up.cancel()
        store.release(segment, lock)
        out, _ = ended(p, 'the process that waited')
    assert 'another process is training this experiment' in said and out.strip() == 'False' and not p.returncode


def test_a_stop_between_two_questions_is_not_lost(small, tmp_path, monkeypatch):
    "A Ctrl-C may come at any instant; whenever fit returns, what was done is committed."
    taken, real = [], Pool.step
    monkeypatch.setattr(Pool, 'step', lambda *a: (real(*a), taken.append(1)))
    for late in range(7, 11):
        class Stop:
            asked = 0
            def is_set(self):
                self.asked += 1
                return self.asked > late
        @contextmanager
        def fake(): yield Stop()
        monkeypatch.setattr(engine, 'interruptible', fake)
        taken.clear()
        run = fit(small, tmp_path/str(late), device='cpu')
        assert run.step == len(taken) > 0 and not run.finished


def test_fit_in_another_thread_leaves_ctrl_c_alone(small, tmp_path):
    before, got = signal.getsignal(signal.SIGINT), []
    t = threading.Thread(target=lambda: got.append(fit(small, tmp_path, device='cpu', progress=False)))
    t.start()
    def over():
        assert signal.getsignal(signal.SIGINT) is before
        return not t.is_alive()
    until(over, 'the thread ends', every=.01)
    assert got[0].finished


def test_a_diverging_run_ends_and_is_found_again(small, tmp_path, monkeypatch):
    wild = small.but(optim=SGD(lr=1e6), loss=MSE())
    run = fit(wild, tmp_path/'a', device='cpu')
    assert run.finished and run.history.loss.isna().any() and run.timeline().generalised.isna().all()
    stopped(wild, tmp_path/'b', monkeypatch)
    again = fit(wild, tmp_path/'b', device='cpu')
    same(again, run)


def test_one_bad_segment_does_not_hide_the_others(small, tmp_path):
    fit(small, tmp_path, device='cpu')
    odd = {'table': small.but(width=9), 'manifest': small.but(width=10), 'class': small.but(width=11)}
    for exp in odd.values(): fit(exp, tmp_path, device='cpu')
    (segment_of(tmp_path, odd['table'])/'runs.0.parquet').write_bytes(b'\xff')
    (segment_of(tmp_path, odd['manifest'])/'manifest.json').write_text('[]')
    with_other_words(segment_of(tmp_path, odd['class']), '"AdamW"', '"elsewhere:Mine"')
    elsewhere = shutil.copytree(tmp_path, tmp_path/'elsewhere')       # where this process has read nothing yet
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter('always')
        assert runs(elsewhere).id.tolist() == [small.id]
    assert len(said) == 3 and all(any(e.id in str(w.message) for w in said) for e in odd.values())


def test_listing_on_the_command_line_survives_a_bad_segment(small, tmp_path):
    fit(small, tmp_path, device='cpu')
    bad = small.but(width=9)
    fit(bad, tmp_path, device='cpu')
    (segment_of(tmp_path, bad)/'manifest.json').write_text('{')
    done = subprocess.run([sys.executable, '-c', 'from grok_nb.lab.cli import main; main()', 'list', '--store', str(tmp_path)],
                          capture_output=True, text=True)
    assert done.returncode == 0 and small.id in done.stdout and bad.id not in done.stdout
    assert done.stderr.startswith('grok-nb: ') and bad.id in done.stderr and len(done.stderr.splitlines()) == 1


def test_a_store_can_be_shared(small, tmp_path):
    old = os.umask(0o002)
    try: fit(small, tmp_path/'s', device='cpu', commit_every=0)
    finally: os.umask(old)
    modes = {f.name: f.stat().st_mode & 0o777 for f in segment_of(tmp_path/'s').iterdir()}
    assert set(modes.values()) == {0o664}, modes
    assert {f.stat().st_mode & 0o777 for f in (tmp_path/'s').rglob('*') if f.is_dir()} == {0o775}


@pytest.mark.parametrize('out', ['file', 'file/below'])
def test_a_bad_folder_for_the_report_is_told_before_training(tmp_path, capsys, out):
    from grok_nb.lab.cli import main
    (tmp_path/'file').write_text('')
    with pytest.raises(SystemExit) as e:
        main(['run', 'modular-addition', '--store', str(tmp_path/'s'), '--out', str(tmp_path/out)])
    said = capsys.readouterr().err
    assert e.value.code == 2 and '--out must be a folder you may write to' in said and len(said.splitlines()) == 1
    assert not list((tmp_path/'s').rglob('manifest.json'))


def test_a_finished_run_can_be_read_where_nothing_may_be_written(small, tmp_path):
    fit(small, tmp_path, device='cpu')
    folders = [d for d in (tmp_path, *tmp_path.rglob('*')) if d.is_dir()]
    for d in folders: d.chmod(0o555)
    try:
        with like_anybody():
            assert fit(small, tmp_path, device='cpu').cached
            assert fit(small.but(seeds=1, lr=.01), tmp_path, device='cpu').cached          # a part of it, of which nobody had asked
            with pytest.raises(StoreError, match='a folder you may write to'): fit(small.but(width=9), tmp_path, device='cpu')
    finally:
        for d in folders: d.chmod(0o755)

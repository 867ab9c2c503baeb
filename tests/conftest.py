"What the tests share: a small experiment, a picture of a folder's bytes, and a browser."
import contextlib
import ctypes
import multiprocessing as mp
import os
import signal
import time
from pathlib import Path

import pytest
from browser import FLAGS, chromium
from hypothesis import HealthCheck, settings
from same import exact
from waiting import LIMIT
from grok_nb.all import AdamW, Experiment, MLP, ModularArithmetic, fit
from grok_nb.tasks.arithmetic import arithmetic
from grok_nb.train.store import Segment

if os.name != 'nt':
    children = mp.get_context('forkserver')
    children.set_forkserver_preload(['grok_nb.all', 'hypothesis', 'psutil', 'pytest'])   # a child has torch and our tools: no seconds of import each time

# What is started behind `&` in a script does not hear Ctrl-C; tests that press it must
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN: signal.signal(signal.SIGINT, signal.default_int_handler)
if hasattr(signal, 'SIGHUP') and signal.getsignal(signal.SIGHUP) == signal.SIG_IGN: signal.signal(signal.SIGHUP, signal.SIG_DFL)

# The same examples each time, so that a red run means a change of ours; GROK_NB_WANDER=1 looks for new ones.
# Slow is not wrong.
settings.register_profile('grok_nb', deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=not os.environ.get('GROK_NB_WANDER'))
settings.load_profile('grok_nb')


# On several workers (`pytest -n 2`) the longest begin first, so that all end at about the same time
LONG = ('browser JupyterLab', 'browser Voila', 'docs', 'sweep', 'signals', 'kill', 'claims', 'shared', 'faults', 'packaging', 'store', 'interrupt', 'configs', 'spectra')


def group(nodeid):
    "What runs in one process: a file, since its tests share what was built or trained; the two laboratories have a server each."
    file, _, test = nodeid.partition('::')
    return Path(file).stem.removeprefix('test_') + next((f' {k}' for k in ('JupyterLab', 'Voila') if k in test.partition('[')[2]), '')


def pytest_collection_modifyitems(items):
    items.sort(key=lambda item: LONG.index(group(item.nodeid)) if group(item.nodeid) in LONG else len(LONG))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    from xdist.scheduler import LoadScopeScheduling
    class Groups(LoadScopeScheduling):
        def _split_scope(self, nodeid): return group(nodeid)
    config.option.loadscopereorder = False
    return Groups(config, log)


@pytest.fixture(scope='session')
def small():
    "A run of about a second that has minibatches, kept weights and per-replica rates: all there is to lose."
    return Experiment(ModularArithmetic(p=13, train_frac=.6), MLP(width=16, depth=2, bias='all'), AdamW(lr=(.01, .02), wd=.1),
                      steps=60, seeds=2, batch=32, keep=6)


@pytest.fixture(scope='session')
def reference(small, tmp_path_factory):
    "The small experiment, trained without any trouble; for comparing and copying, not for changing."
    return fit(small, tmp_path_factory.mktemp('reference'), device='cpu')


@pytest.fixture
def picture():
    "Every file below a folder with its bytes; locks and manifests (they hold times) can be left out."
    def take(path, skip=()):
        return {str(f.relative_to(path)): f.read_bytes() for f in sorted(path.rglob('*')) if f.is_file() and f.name not in skip}
    return take


def segment_of(store, exp=None):
    "The folder of the one segment of a store, or of the one that `fit` made for an experiment."
    found, = (Path(store)/'segments').glob(f'{exp.id}.*' if exp else '[!.]*.*')
    return found


def with_other_words(segment, old, new):
    "Write the tables of the experiments of a segment anew, with other words in them, as a later version of somebody's code would."
    import pyarrow.compute as pc
    from grok_nb.train.record import _parquet, _table
    segment = Segment(segment)
    for kind, column, a, b in (('experiments', 'config', old, new), ('runs', 'types', old.strip('"'), new.strip('"'))):
        name, = segment.files(kind)
        t = _table(segment.read(name))
        t = t.set_column(t.column_names.index(column), column, pc.replace_substring(t[column], a, b))
        segment.commit({f'{kind}.99.parquet': _parquet(kind, t)}, (name,))


@contextlib.contextmanager
def like_anybody():
    "Root may read and write everywhere; in this block permissions hold for it too. (It lays down two of its capabilities on Linux; elsewhere such a test is skipped.)"
    if os.name == 'nt' or os.geteuid(): yield; return
    libc, head = ctypes.CDLL(None, use_errno=True), (ctypes.c_uint32*2)(0x20080522, 0)      # version 3 of the call, for this thread
    held = (ctypes.c_uint32*6)()                                                            # effective, permitted, inheritable; twice
    if not hasattr(libc, 'capget') or libc.capget(head, held): pytest.skip('root may write everywhere here')
    less = (ctypes.c_uint32*6)(*held)
    less[0] &= ~0b110                                                                       # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH
    assert not libc.capset(head, less), os.strerror(ctypes.get_errno())
    try: yield
    finally: assert not libc.capset(head, held), os.strerror(ctypes.get_errno())


@pytest.fixture(scope='session')
def browser():
    "The machine's own Chromium. One for all, since Playwright does not run twice at a time."
    chrome = chromium()
    from playwright.sync_api import sync_playwright
    with sync_playwright() as pw:
        browser = pw.chromium.launch(executable_path=chrome, args=FLAGS, timeout=1000*LIMIT)
        yield browser
        browser.close()


def pytest_terminal_summary(terminalreporter):
    if not exact: terminalreporter.write_line(f'no bits are promised in the {arithmetic()!r} arithmetic of this process: runs were compared up to rounding')


# --- what runs now, for whoever waits: see dev/fresh.py ------------------------------------------------------------

def note(what, name):
    "Append a line that says what begins or ends; only where no other process does it for this one"
    if (to := os.environ.get('GROK_NB_PROGRESS')) and 'PYTEST_XDIST_WORKER' not in os.environ:
        with open(to, 'a', encoding='utf-8') as f: f.write(f'{what}\t{time.time()}\t{name}\n')


failed = set()


def pytest_runtest_logstart(nodeid, location): note('begin', nodeid)


def pytest_runtest_logreport(report):
    if report.failed: failed.add(report.nodeid)


def pytest_runtest_logfinish(nodeid, location): note('failed' if nodeid in failed else 'passed', nodeid)

"""`nbdev_test` on all notebooks or on those named, the longest first: `python dev/notebooks.py [--reverse] [--record] [notebook ...]`

Two at a time; the long ones first, so that no core waits for a last long one. Each runs in a process of its own, which is a
copy of one that has the imports done: nothing is left behind for the next one, neither names nor memory. --shared lets them
share two processes, as the plain `nbdev_test` does, and --reverse turns the order round: that must not matter. --record
writes down which passed, with the date and the commit (`make test-cpu`), for the scoreboard."""
import argparse
import gc
import multiprocessing
import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

import nbdev.test
from execnb.shell import CaptureShell
from matplotlib.backends.backend_agg import FigureCanvasAgg
from passed import PASSED, ROOT, commit, name, record

ORDER = ROOT/'dev/longest.txt'
test_nb = nbdev.test.test_nb


class Shell(CaptureShell):
    "Each figure is drawn once: when it is shown, but not before that, nor again to be cropped, and not at twice the resolution"
    def __init__(self, *args, **kw):
        super().__init__(*args, mpl_format='png', **kw)
        self._run("set_matplotlib_formats('png', bbox_inches=None)")
        FigureCanvasAgg.draw_idle = lambda *_, **kw: None


nbdev.test.CaptureShell = Shell


def note(what, f, *cost):
    "Tell whoever waits what begins and ends, and what it has cost"
    if to := os.environ.get('GROK_NB_PROGRESS'):
        with open(to, 'a', encoding='utf-8') as out: print(what, time.time(), name(f), *cost, sep='\t', file=out)


def cpu() -> float:
    "CPU seconds of this process and of those that it started and that have ended"
    t = os.times()
    return t.user + t.system + t.children_user + t.children_system


def noted(f, **kw):
    "Run a notebook, as nbdev does, and tell"
    note('begin', f)
    gc.freeze()                     # what was there before the copy is neither looked through nor touched
    passed, before = (False, 0.), cpu()
    try: passed = test_nb(f, **kw)
    finally: note('passed' if passed[0] else 'failed', f, cpu() - before)
    return passed


def workers(n, shared):
    "Processes that run notebooks"
    if shared or os.name == 'nt': return ProcessPoolExecutor(n)
    server = multiprocessing.get_context('forkserver')
    later = ['torch.distributed.tensor', 'torch._dynamo']    # what `assert_close` and an optimiser of torch's import when they are first used
    server.set_forkserver_preload(['notebooks', 'grok_nb.all', 'matplotlib_inline.backend_inline', *later])
    return ProcessPoolExecutor(n, server, max_tasks_per_child=1)


def longest_first(reverse=False, keep=False, shared=False):
    "What takes the place of fastcore's `parallel` in `nbdev_test`"
    at, slow = commit() if keep else '', {o: i for i, o in enumerate(ORDER.read_text().split())}

    def parallel(test, files, n_workers, pause, **kw):
        order = sorted(files, key=lambda f: (slow.get(name(f), len(slow)), name(f)), reverse=reverse)
        with workers(max(n_workers, 1), shared) as pool:
            futures = {pool.submit(noted, f, **kw): f for f in order}
            for done in as_completed(futures):
                try: ok = done.result()[0]
                except BrokenProcessPool: sys.exit('a notebook ended its process')
                if ok: record(futures[done], at)
        return [next(r.result() for r, g in futures.items() if g == f) for f in files]
    return parallel


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('files', nargs='*', type=Path, help='notebooks; all of them by default')
    parser.add_argument('--reverse', action='store_true', help='the shortest first')
    parser.add_argument('--shared', action='store_true', help='two processes for all of them')
    parser.add_argument('--record', action='store_true', help=f'write what passes to {PASSED.relative_to(ROOT)}')
    args = parser.parse_args()
    if missing := [str(f) for f in args.files if not f.is_file()]: sys.exit(f'no such notebook: {", ".join(missing)}')
    files = [f.absolute() for f in args.files]
    sys.path.insert(0, str(ROOT))       # what is tested, for the processes that are copied
    if files: nbdev.test.nbglob = lambda *_, **kw: files
    nbdev.test.parallel = longest_first(args.reverse, args.record, args.shared)
    nbdev.test.nbdev_test.__wrapped__(n_workers=2)


if __name__ == '__main__':
    import notebooks                # by its name, since a notebook takes the place of __main__ in the process that runs it
    notebooks.main()

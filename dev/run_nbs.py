"""Run notebooks in place and keep their outputs: what `nbdev_test` runs, saved.

    python dev/run_nbs.py                        # all notebooks
    python dev/run_nbs.py nbs/train/*.ipynb      # some
    python dev/run_nbs.py --jobs 2

Two runs give the same bytes: whatever differs from run to run (widget ids, progress bars, counters) is left out.
Paper notebooks take their size from GROK_NB_SCALE, which is `cpu` here unless the environment says otherwise; what passes at
that scale is written down for the scoreboard (see dev/passed.py)."""
import argparse
import base64
import io
import os
import re
import subprocess
import sys
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from passed import ROOT, SCALE, commit, name, notebooks, record

MAX_PNG = 100_000
WIDGET = 'application/vnd.jupyter.widget-view+json'
WIDGET_NOTE = 'A live widget: run this notebook in JupyterLab to use it.'
RE_PROGRESS = re.compile(r'[^\n]*\r[^\n]*\n?|^[^\n]*\d+%\|[^\n]*\n?', re.M)
RE_STYLER = re.compile(r'\bT_[0-9a-f]{5}(?=[_" ])')


def skipped(cell, flags):
    "Whether `nbdev_test` would not run this cell"
    if cell.cell_type != 'code' or 'nbdev_export(' in cell.source: return True
    directives = cell.directives_ or {}
    return directives.get('eval:', [''])[0].lower() == 'false' or bool(flags & directives.keys())


def without_widget(data):
    "`data` without the reference to a live widget, whose id is random and whose model is not stored"
    if data.pop(WIDGET, None) and not any(k.startswith('image/') or k == 'text/html' for k in data):
        data.clear()
        data['text/plain'] = [WIDGET_NOTE]
        data['text/markdown'] = [f'*{WIDGET_NOTE}*']


def png_width(data):
    "Width in pixels from the header of a base64 PNG"
    return int.from_bytes(base64.b64decode(data[:32])[16:20], 'big')


def small_png(data):
    "A base64 PNG with a palette of 256 colours: a figure needs no more, and the repository keeps every version of it"
    from PIL import Image
    image = Image.open(io.BytesIO(base64.b64decode(data))).convert('RGB')
    buf = io.BytesIO()
    image.quantize(256, dither=Image.Dither.NONE).save(buf, 'PNG', optimize=True)
    return base64.b64encode(buf.getvalue()).decode()


def tidy_output(out, uid):
    "Make one output the same in every run; False if nothing is left of it"
    if out['output_type'] == 'stream':
        text = RE_PROGRESS.sub('', ''.join(out['text']))
        out['text'] = text.splitlines(True)
        return bool(text.strip())
    data = out.get('data', {})
    without_widget(data)
    if 'text/html' in data:
        data['text/html'] = RE_STYLER.sub(f'T_{uid}', ''.join(data['text/html'])).splitlines(True)
    if 'image/png' in data:
        data['image/png'] = small_png(data['image/png'])
        out.setdefault('metadata', {}).setdefault('image/png', {}).setdefault('width', png_width(data['image/png']))
    return True


def remarks(cell, where):
    "What the author should know about a cell that ran"
    for out in cell.get('outputs', []):
        if out.get('name') == 'stderr': yield f'{where}: warning in the output: {"".join(out["text"]).strip()[:200]}'
        size = len(out.get('data', {}).get('image/png', ''))*3//4
        if size > MAX_PNG: yield f'{where}: the figure is {size//1000} KB; aim below {MAX_PNG//1000} KB'


def error_text(exc, cell, where):
    "A failure as notebook, cell, its source and the traceback from the cell inwards"
    tb = exc.__traceback__
    while tb and '<ipython-input' not in tb.tb_frame.f_code.co_filename and 'ipykernel_' not in tb.tb_frame.f_code.co_filename: tb = tb.tb_next
    trace = ''.join(traceback.format_exception(type(exc), exc, tb or exc.__traceback__))
    return f'{where} failed: {type(exc).__name__}: {exc}\n\n{cell.source}\n\n{trace}'


def run_one(path):
    "Execute the notebook at `path` in this process and write it back"
    from execnb.nbio import write_nb
    from execnb.shell import CaptureShell
    from nbdev.clean import nbdev_clean
    from nbdev.config import get_config
    from nbdev.process import NBProcessor
    flags = set(get_config(path=ROOT).tst_flags.split())
    nb = NBProcessor(path, rm_directives=False).nb
    if any(c.cell_type == 'raw' and 'skip_exec: true' in c.source for c in nb.cells): return
    sys.path.insert(0, str(ROOT))
    os.chdir(path.parent)
    shell = CaptureShell(path)
    for i, cell in enumerate(nb.cells):
        if skipped(cell, flags): continue
        where = f'{name(path)}, cell {i}'
        cell.outputs = []   # a cell that no longer says anything must not keep what it said before
        shell.cell(cell)
        if shell.exc: sys.exit(error_text(shell.exc, cell, where))
        cell.outputs = [o for j, o in enumerate(cell.outputs) if tidy_output(o, f'{i}_{j}')]
        for remark in remarks(cell, where): print(remark)
    nb.metadata.pop('widgets', None)
    os.chdir(ROOT)
    write_nb(nb, path)
    nbdev_clean(str(path))


def run(path, at):
    "Execute `path` in a process of its own, so that no state leaks, and write down that it passed at a commit; its error or None"
    start = time.perf_counter()
    env = {**os.environ, 'GROK_NB_SCALE': SCALE, 'PYTHONHASHSEED': '0'}
    done = subprocess.run([sys.executable, __file__, '--worker', str(path)], env=env, text=True, capture_output=True)
    if done.stdout.strip(): print(done.stdout.strip(), flush=True)
    if not done.returncode:
        record(path, at)
        return print(f'{name(path)}: {time.perf_counter()-start:.1f} s', flush=True)
    return done.stderr.strip() or f'{name(path)}: the process ended with code {done.returncode}'


def main():
    "Run the notebooks named on the command line"
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('files', nargs='*', type=Path, help='notebooks to run; all of them by default')
    parser.add_argument('--jobs', type=int, default=1, help='notebooks at a time')
    parser.add_argument('--worker', action='store_true', help=argparse.SUPPRESS)
    args = parser.parse_args()
    # `nbs/index.ipynb` is a link to the file at the root: run the file, and run it once
    files = list(dict.fromkeys(f.resolve() for f in args.files or notebooks()))
    if missing := [f for f in files if not f.is_file()]: sys.exit(f'no such notebook: {", ".join(map(str, missing))}')
    if args.worker: return run_one(files[0])
    at = commit()
    with ThreadPoolExecutor(args.jobs) as pool: errors = [e for e in pool.map(lambda f: run(f, at), files) if e]
    if errors: sys.exit('\n\n'.join(errors) + f'\n\n{len(errors)} of {len(files)} notebooks failed and were left as they were')


if __name__ == '__main__': main()

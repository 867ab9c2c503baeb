"""Pictures of the laboratory for the documentation: `python dev/pictures.py`, about three minutes.

Trains a few experiments and a sweep, serves the laboratory as an app, and leaves a small PNG of each panel in
nbs/images. It needs Chromium; what is served and how it is driven is shared with the browser tests."""
import io
import re
import sys
import tempfile
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT/'tests')]

from browser import FLAGS, Lab, chromium, served, until  # noqa: E402
from waiting import LIMIT  # noqa: E402
from grok_nb.all import AdamW, Experiment, MLP, ModularArithmetic, fit, preset  # noqa: E402
from grok_nb.lab.jobs import write_job, work  # noqa: E402
from grok_nb.lab.phase import cells, evenly  # noqa: E402


def fill(store):
    "Runs to compare, and a sweep"
    for name in ('modular-addition', 'modular-addition-strong-decay', 'modular-multiplication'):
        run = fit(preset(name), store)
        run.folder.rename(name)
    exp = Experiment(ModularArithmetic('+', p=23), MLP(width=64, act='square'), AdamW(lr=.01, wd=1., beta2=.98), steps=800, seeds=3, keep=6)
    about = dict(x='optim.wd', xs=[.03, .1, .3, 1., 3.], y='task.train_frac', ys=[.3, .45, .6, .75, .9], delay=80)
    grid = cells(exp, *(about[k] for k in ('x', 'xs', 'y', 'ys')))
    work(write_job([grid[i]['experiment'] for i in evenly(5, 5)], store, 'sweep', 'weight decay and data', about).folder)


def keep(lab, name, height):
    "A small PNG of what is seen"
    lab.page.set_viewport_size(dict(width=1280, height=height))
    lab.page.wait_for_timeout(800)
    image = Image.open(io.BytesIO(lab.box.screenshot())).convert('RGB')
    image = image.crop((0, 0, image.width, min(image.height, height))).quantize(256, kmeans=2, dither=0)    # colour scales stay as they are
    image.save(ROOT/f'nbs/images/lab_{name}.png', optimize=True)


def look(lab):
    "Every panel, in a state that is worth seeing"
    lab.pick('modular-addition-relu')
    until(lambda: 'while training' in lab.box.inner_text(), 'the cost is measured')
    keep(lab, 'choose', 900)
    lab.tab('Sweep').click()
    until(lambda: '25 of 25 cells' in lab.box.inner_text(), 'the sweep is drawn')
    keep(lab, 'sweep', 700)
    lab.tab('Compare').click()
    boxes = lab.box.locator('input[type=checkbox]').locator('visible=true')
    lab.label('Find').fill('p=59')
    until(lambda: boxes.count() == 3, 'three runs are found')
    for box in boxes.all(): box.check()
    lab.text('save as PNG').wait_for()
    keep(lab, 'compare', 1000)
    lab.tab('Choose').click()
    lab.pick('modular-addition')
    until(lab.button('Open').is_enabled, 'the run can be opened')
    lab.button('Open').click()
    until(lambda: lab.box.locator('svg.gnb-picture').locator('visible=true').count() >= 5 and 'drawing' not in lab.box.inner_text(), 'all pictures are drawn')
    keep(lab, 'look', 900)


def run(lab):
    "A run that is nearly over"
    lab.tab('Choose').click()
    lab.label('seeds').fill('6')
    until(lab.button('Run').is_enabled, 'it can be run')
    lab.button('Run').click()
    lab.text(re.compile(r'Training, step 1,[34]')).wait_for()
    keep(lab, 'run', 900)


def main():
    folder = Path(tempfile.mkdtemp())
    fill(folder/'store')
    with served('app', folder) as server, sync_playwright() as pw:
        browser = pw.chromium.launch(executable_path=chromium(), headless=True, args=FLAGS, timeout=1000*LIMIT)
        lab = Lab(server, browser.new_page(viewport=dict(width=1280, height=900))).open()
        look(lab)
        run(lab)
        browser.close()


if __name__ == '__main__': main()

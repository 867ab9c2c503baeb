"The laboratory as a person uses it: in a real browser, in JupyterLab and as an app with Voila."
import contextlib
import json
import os
import re
import urllib.error
import urllib.request

import pytest
from browser import Lab, served
from grok_nb.all import AdamW, Experiment, MLP, ModularArithmetic, fit, open_run, preset, presets, timeline
from grok_nb.lab.jobs import jobs
from waiting import LIMIT, unmoved, until

KINDS = dict(lab='JupyterLab', app='Voila')
PANELS = ('Choose', 'Run', 'Look', 'Compare', 'Sweep')


@pytest.fixture(scope='module', params=list(KINDS), ids=list(KINDS.values()))
def server(request, browser, tmp_path_factory):
    "The laboratory, served by `grok-nb lab`, with two runs in its store"
    folder = tmp_path_factory.mktemp(request.param)
    exp = Experiment(ModularArithmetic('+', p=11, train_frac=.6), MLP(width=16, act='square'), AdamW(lr=.01, wd=1.), steps=150, seeds=2, keep=6)
    runs = [fit(exp.but(wd=wd), folder/'store') for wd in (1., .1)]
    with served(request.param, folder) as s:
        s.runs = runs
        yield s


ALL = bool(os.environ.get('GROK_NB_KILL'))           # as `make test-kill` sets it


# Of a test of our own panels, which are the same code in both: `make test` takes JupyterLab, which also tells of errors in the kernel
own_panels = pytest.mark.parametrize('server', list(KINDS) if ALL else ['lab'], ids=list(KINDS.values()) if ALL else ['JupyterLab'], indirect=True)


@contextlib.contextmanager
def opened(browser, server, size=(1280, 900)):
    "A page of its own with the laboratory in it"
    context = browser.new_context(viewport=dict(zip(('width', 'height'), size)), color_scheme='light')
    lab = Lab(server, context.new_page())
    try: yield lab.open()
    except Exception:
        lab.shot('failed')
        raise
    finally:
        with contextlib.suppress(Exception): lab.page.goto('about:blank')    # lets the app stop its kernel
        context.close()


@pytest.fixture(scope='module')
def page(browser, server):
    "The page that most tests share, one after the other"
    with opened(browser, server) as lab: yield lab


@pytest.fixture
def lab(page, request):
    "The shared page; afterwards a picture of it is kept, and nothing may have gone wrong in it"
    page.complaints()
    yield page
    page.shot(request.node.originalname.removeprefix('test_'))
    for j in jobs(page.server.store): j.stop()
    assert page.complaints() == []


# --- at the door ---------------------------------------------------------------------------------------------------

def status(url, **kw):
    "What a server answers, without following it elsewhere"
    class Stay(urllib.request.HTTPRedirectHandler):
        def redirect_request(self, *args): return None
    try: return urllib.request.build_opener(Stay).open(urllib.request.Request(url, **kw), timeout=LIMIT).status
    except urllib.error.HTTPError as e: return e.code


def test_nobody_comes_in_without_the_token(server):
    root = '/'.join(server.url.split('/')[:3])
    kernel = f'{root}/api/kernels/00000000-0000-0000-0000-000000000000'
    assert status(server.plain) == status(f'{server.plain}?token=wrong') == 302      # to a page that asks for it
    assert status(kernel) == status(kernel, method='DELETE') == status(f'{kernel}/channels') == 403
    assert status(f'{root}/voila/files/a.png') == 403
    assert status(f'{kernel}?token={server.token}') == 404


# --- a session -----------------------------------------------------------------------------------------------------

def choose(lab, name):
    "Put a preset into the form that can be run"
    lab.pick(name)
    until(lab.button('Run').is_enabled, f'{name} can be run')


def step_of(lab):
    "The step that the page shows"
    found = re.search(r'step ([\d,]+) of', lab.box.inner_text())
    return int(found[1].replace(',', '')) if found else -1


def start(lab, name, steps=None):
    "Run a preset, or so many steps of it, and wait until the page shows that it trains"
    choose(lab, name)
    total = steps or preset(name).steps
    if steps:
        lab.label('steps').fill(str(steps))
        until(lambda: f'{steps:,} x' in lab.box.inner_text() and lab.button('Run').is_enabled(), f'{steps} steps can be run')
    lab.button('Run').click()
    lab.text(re.compile(f'(Training|Finished), step [\\d,]+ of {total:,}')).wait_for()


def finished(lab, what='Finished, step'):
    "Wait for the end of a run"
    lab.text(re.compile(what)).wait_for()


def test_opens(lab):
    for name in PANELS: assert lab.tab(name).is_visible()
    assert lab.button('Run').is_enabled()


@own_panels
def test_experiments_of_papers_can_be_chosen(lab):
    source = lab.label('From')
    for paper, first in (('dichotomy', 'dichotomy:E1'), ('groktransfer', 'groktransfer:C6')):
        source.select_option(next(o for o in source.locator('option').all_inner_texts() if paper in o))
        lab.picked(first)
        assert lab.label('steps').input_value() == str(presets[first].experiment.steps)
    source.select_option(index=0)
    lab.picked('modular-addition')


@own_panels
def test_a_preset_runs_until_it_groks(lab):
    start(lab, 'permutations')
    finished(lab)
    known = timeline(open_run(preset('permutations'), lab.server.store).history).generalised.notna().sum()
    assert known > 4                                      # more than half of them grok
    lab.text(f'8 of 8 replicas have memorised, {known} have generalised').wait_for()
    assert lab.box.locator('svg.gnb-picture').locator('visible=true').count() >= 3


def beat(job): return json.loads((job.folder/'beat.json').read_text())


def test_pause_resume_and_stop_are_done_and_said(lab):
    start(lab, 'modular-addition', 1_000_000)
    job, held = jobs(lab.server.store)[0], 0

    def press(button, state, word):
        "The deed and the word on the page follow a click"
        lab.button(button).click()
        until(lambda: job.status().state == state, f'the worker is {state}')
        lab.text(re.compile(f'{word}, step')).wait_for()

    for _ in range(2):
        press('Pause', 'paused', 'Paused')
        unmoved(lambda: beat(job)['step'], lambda: (job.folder/'beat.json').stat().st_mtime_ns, 'the paused worker')
        until(lambda: step_of(lab) == beat(job)['step'], 'the page shows where it was paused')
        assert step_of(lab) >= held
        held = step_of(lab)
        press('Resume', 'running', 'Training')
        until(lambda: step_of(lab) > held, 'the run goes on')
    press('Stop', 'stopped', 'Stopped')
    assert step_of(lab) >= held


@own_panels
def test_a_mistake_is_explained_beside_its_field(lab):
    lab.tab('Choose').click()
    field = lab.label('steps')
    good = field.input_value()
    field.fill('many')
    lab.text(re.compile('steps must be a whole number')).wait_for()
    assert lab.button('Run').is_disabled()
    field.fill(good)
    until(lab.button('Run').is_enabled, 'the mended form can be run')
    assert lab.box.get_by_role('alert').locator('visible=true').count() == 0


def drawn(lab):
    "All pictures that are seen"
    return lab.box.locator('svg.gnb-picture').locator('visible=true').evaluate_all('all => all.map(e => e.outerHTML).join()')


@own_panels
def test_scrubbing_goes_through_the_checkpoints(lab):
    lab.tab('Look').click()
    lab.label('Run').select_option(index=1)
    handle = lab.box.locator('.noUi-handle').locator('visible=true').first
    handle.wait_for()
    readout = lab.box.locator('.widget-readout').locator('visible=true').first
    until(lambda: drawn(lab), 'a checkpoint is drawn')
    seen = {}
    for press in (None, 'ArrowLeft', 'ArrowLeft'):
        before = drawn(lab)
        if press:
            handle.focus()
            lab.page.keyboard.press(press)
            until(lambda: drawn(lab) != before, 'another checkpoint is drawn')
        until(lambda: 'drawing' not in lab.box.inner_text(), 'it is all drawn')
        seen[int(re.sub(r'\D', '', readout.inner_text()))] = drawn(lab)
    assert len(seen) == 3 and list(seen) == sorted(seen, reverse=True) and len(set(seen.values())) == 3


def test_two_runs_are_compared_and_copied(lab):
    lab.tab('Compare').click()
    ids = [r.config.id for r in lab.server.runs]
    for id in ids: lab.label(id[:6]).check()
    lab.box.get_by_text('save as PNG').locator('visible=true').first.wait_for()
    table = lab.box.locator('table').locator('visible=true').last
    until(lambda: 'wd=0.1' in table.inner_text() and re.search(r'wd=1\b', table.inner_text()), 'the table compares the two')
    lab.page.context.grant_permissions(['clipboard-read', 'clipboard-write'])
    lab.button('Copy Python cell').click()
    lab.text('Copied').wait_for()
    cell, ns = lab.page.evaluate('navigator.clipboard.readText()'), {}
    exec(cell.partition('run = fit')[0], ns)
    assert ns['exp'] in [r.config for r in lab.server.runs]
    lab.button('Untick all').click()


@own_panels
def test_a_sweep_fills_its_diagram_and_a_cell_opens_its_run(lab):
    lab.pick('permutations')
    lab.label('steps').fill('60')
    until(lambda: '60 x 8 replicas' in lab.box.inner_text() and lab.button('Run').is_enabled(), '60 steps can be run')
    lab.tab('Sweep').click()
    values = lab.box.get_by_label('values', exact=True).locator('visible=true')
    for i, text in enumerate(('0.3, 1', '0.5, 0.8')): values.nth(i).fill(text)
    cells = lab.box.locator('.gnb-cell').locator('visible=true')
    until(lambda: cells.count() == 4 and lab.button('Start').is_enabled(), 'the sweep of four can be started')
    lab.button('Start').click()
    lab.text('4 of 4 cells: finished').wait_for()
    lab.shot('sweep-finished')
    cells.first.click()
    lab.label('Replica').wait_for()
    until(lambda: drawn(lab), 'the run of a cell is drawn')
    lab.tab('Sweep').click()
    for i, text in enumerate(('2, 5', '0.55, 0.65')): values.nth(i).fill(text)
    until(lambda: all(not c.strip() for c in cells.all_inner_texts()), 'nothing is left of the other sweep')


def focused(page):
    "The text of what has the keyboard"
    return page.evaluate('(document.activeElement.textContent || document.activeElement.value || "").trim()')


def move(lab, key):
    "Press a key and wait until something else has the keyboard"
    lab.page.evaluate('window.had = document.activeElement')
    lab.page.keyboard.press(key)
    lab.page.wait_for_function('document.activeElement !== window.had')


def tab_to(lab, name, most=200):
    "Press Tab until something with this text has the keyboard"
    for _ in range(most):
        move(lab, 'Tab')
        if focused(lab.page) == name: return
    raise AssertionError(f'{name} is not reached by {most} presses of Tab')


def test_everything_can_be_done_with_the_keyboard(lab):
    choose(lab, 'modular-addition')
    lab.label('steps').fill('900000')
    until(lambda: '900,000 x' in lab.box.inner_text() and lab.button('Run').is_enabled(), '900000 steps can be run')
    lab.tab('Look').click()
    lab.label('steps').wait_for(state='hidden')          # or the next keys would still find the form
    lab.tab('Look').focus()
    move(lab, 'Shift+Tab')
    move(lab, 'Shift+Tab')
    assert focused(lab.page) == 'Choose'
    lab.page.keyboard.press('Space')
    lab.label('steps').wait_for()
    tab_to(lab, 'Run')                                   # of the tabs
    tab_to(lab, 'Run')                                   # of the form
    assert lab.button('Run').evaluate('e => e === document.activeElement')
    lab.page.keyboard.press('Space')
    lab.text(re.compile('Training, step')).wait_for()
    tab_to(lab, 'Stop')
    lab.page.keyboard.press('Enter')
    lab.text(re.compile('Stopped, step')).wait_for()


def fits(lab, theme):
    "Nothing in any panel is too wide or too faint, in two widths of the window, and nothing went wrong since the last time"
    wide = {}
    for width in (1280, 1920):
        lab.page.set_viewport_size(dict(width=width, height=1000))
        for i, name in enumerate(PANELS):
            lab.tab(name).click()
            lab.box.locator(':scope > *').nth(3 + i).wait_for()             # after the style, the tabs and a line for errors
            until(lambda: not re.search('drawing step|Drawing|Reading the store|Waiting for', lab.box.inner_text()), f'{name} has drawn all it shows')
            lab.page.evaluate('new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))')
            lab.shot(f'{name.lower()}-{width}-{theme}')
            if bad := lab.too_wide(): wide[name, width] = bad
            if bad := lab.too_faint(): wide[name, theme] = bad
            assert lab.is_dark() == (theme == 'dark')
    assert wide == {} and lab.complaints() == []
    grey = dict(light='#808080', dark='#606060')[theme]
    lab.box.evaluate(f"e => {{ e.lastElementChild.style.minWidth = '3000px'; e.style.setProperty('--jp-ui-font-color1', '{grey}') }}")
    assert lab.too_wide() != [] and lab.too_faint() != []                   # this would have been seen
    lab.box.evaluate("e => { e.lastElementChild.style.minWidth = ''; e.style.removeProperty('--jp-ui-font-color1') }")
    assert lab.too_wide() == lab.too_faint() == []


def test_panels_fit_the_screen(page): fits(page, 'light')


def test_a_lost_kernel_loses_nothing(lab):
    start(lab, 'modular-addition-strong-decay', 250)
    until(lambda: step_of(lab) > 20, 'the page shows a step above 20')
    job, before = jobs(lab.server.store)[0], step_of(lab)
    worker = beat(job)['pid']
    lab.again()
    lab.tab('Run').click()
    lab.text(re.compile('(Training|Finished), step')).wait_for()
    assert step_of(lab) >= before
    finished(lab, 'Finished, step 250 of 250')
    assert beat(job)['pid'] == worker                     # the same process has come to the end
    assert 'have generalised' in lab.box.inner_text()


def test_dark_panels_fit_the_screen(page): fits(page.darken(), 'dark')      # the app's page has just come back dark

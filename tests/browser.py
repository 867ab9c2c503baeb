"""The laboratory in a real browser, served as a person serves it: what the tests in test_browser.py stand on.

`grok-nb lab` is started from a copy of the package in a folder of its own, as if it had been installed, with its own home,
settings and store; the token stays on. Whatever was started is ended, whether a test fails or not. Pictures of what was
seen are left in $GROK_NB_SHOTS, or in tests/shots."""
import contextlib
import json
import os
import queue
import re
import shutil
import subprocess
import sys
import threading
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest
from waiting import LIMIT, started, until

ROOT = Path(__file__).resolve().parent.parent
SHOTS = Path(os.environ.get('GROK_NB_SHOTS') or ROOT/'tests/shots')
NAMES = ('chromium', 'chromium-browser', 'google-chrome')
# `--no-sandbox` because a container's root may not use the sandbox; the others keep the browser off the network
FLAGS = '--no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking --disable-component-update --disable-sync'.split()
# Settings of a JupyterLab under test: no question about news over the page, and cells below the fold exist too
SETTINGS = {'apputils-extension/notification': {'fetchNews': 'false', 'checkForUpdates': False}, 'notebook-extension/tracker': {'windowingMode': 'none'},
            'apputils-extension/themes': {'theme': 'JupyterLab Light'}}


def chromium() -> str:
    "The browser of this machine; without one the test is skipped and says so."
    found = next(filter(None, map(shutil.which, NAMES)), None)
    return found or pytest.skip('no Chromium found: install chromium to run the browser tests')


# --- servers -------------------------------------------------------------------------------------------------------

@dataclass
class Server:
    "A laboratory that is being served"
    kind: str                   # 'lab' (JupyterLab) or 'app' (Voila)
    url: str                    # with its token
    folder: Path                # its home, store, settings and log
    process: psutil.Process = field(repr=False)

    @property
    def store(self): return self.folder/'store'
    @property
    def plain(self): return self.url.partition('?')[0]
    @property
    def token(self): return self.url.partition('token=')[2]
    def log(self): return (self.folder/'log.txt').read_text(errors='replace')


def environment(folder: Path) -> dict:
    "Surroundings in which nothing of the machine's user plays a part"
    own = dict(HOME='home', GROK_NB_STORE='store', IPYTHONDIR='ipython', JUPYTER_CONFIG_DIR='jupyter', JUPYTER_DATA_DIR='data', JUPYTER_RUNTIME_DIR='runtime',
               JUPYTERLAB_SETTINGS_DIR='settings', JUPYTERLAB_WORKSPACES_DIR='workspaces', PYTHONPATH='site')
    for d in own.values(): (folder/d).mkdir(exist_ok=True)
    env = {k: v for k, v in os.environ.items() if not k.startswith(('JUPYTER', 'VOILA'))}
    env |= {k: str(folder/d) for k, d in own.items()} | dict(OMP_NUM_THREADS='1')
    env.setdefault('MPLCONFIGDIR', str(folder/'mpl'))       # making its list of fonts takes seconds: once is enough
    return env


def settings(folder: Path):
    "Write JupyterLab's settings"
    for name, values in SETTINGS.items():
        f = folder/'settings/@jupyterlab'/f'{name}.jupyterlab-settings'
        f.parent.mkdir(parents=True, exist_ok=True)
        f.write_text(json.dumps(values))


def address(process) -> str:
    "The address that a server prints"
    lines = queue.Queue()
    threading.Thread(target=lambda: [lines.put(o) for o in process.stdout] + [lines.put('')], daemon=True).start()
    try: first = lines.get(timeout=LIMIT)
    except queue.Empty: first = ''
    found = re.fullmatch(r'Laboratory: (http://127\.0\.0\.1:\d+/\S*\?token=\S+)\n', first)
    if not found: raise RuntimeError(f'no address within {LIMIT} s but {first!r}')
    return found[1]


@contextlib.contextmanager
def served(kind: str, folder: Path, *options):
    "A laboratory in `folder`, served by our own command until the block ends"
    skip = shutil.ignore_patterns('__pycache__', '.ipynb_checkpoints')
    shutil.copytree(ROOT/'grok_nb', folder/'site/grok_nb', ignore=skip)         # links are followed: as in a wheel
    env = environment(folder)
    settings(folder)
    cmd = [sys.executable, '-m', 'grok_nb', 'lab', '--no-browser', *(['--app'] if kind == 'app' else []), *options]
    with open(folder/'log.txt', 'w') as log, started(*cmd, cwd=folder/'home', env=env, stdout=subprocess.PIPE, stderr=log) as p:
        try: yield Server(kind, address(p), folder, psutil.Process(p.pid))
        finally: end(p, folder)


def end(p: subprocess.Popen, folder: Path):
    "End the server, its kernels and the jobs, and whatever they have started meanwhile"
    def none_left():
        left = set(filter(alive, family(p.pid) | of_folder(folder)))
        for q in left:
            with contextlib.suppress(psutil.Error): q.kill()
        return not left
    until(none_left, f'all processes of {folder} are gone')


def alive(p: psutil.Process) -> bool:
    "Is it more than a name in a table?"
    try: return p.is_running() and p.status() != psutil.STATUS_ZOMBIE
    except psutil.Error: return False


def family(pid: int) -> set:
    "A process and those below it"
    try: return {(p := psutil.Process(pid)), *p.children(recursive=True)}
    except psutil.Error: return set()


def of_folder(folder: Path) -> set:
    "Processes that work in or for a folder: a worker belongs to nobody once its page is gone"
    out = set()
    for p in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if p.pid != os.getpid() and any(str(folder) in o for o in p.cmdline()): out.add(p)
    return out


# --- pages ---------------------------------------------------------------------------------------------------------

# What the servers' own code complains of; everything else is ours
NOT_OURS = ('Unsatisfied version', 'does not satisfy the requirement', 'No satisfying version')


@dataclass
class Lab:
    "A page with the laboratory in it; the same words for JupyterLab and for Voila"
    server: Server
    page: object
    wrong: list = field(default_factory=list)   # what went wrong so far

    def __post_init__(self):
        p, complain = self.page, self.wrong.append
        p.set_default_timeout(1000*LIMIT)
        p.on('pageerror', lambda e: complain(f'error: {e}'))
        p.on('console', lambda m: complain(f'console: {m.text}') if m.type == 'error' and not any(o in m.text for o in NOT_OURS) else None)
        p.on('request', lambda r: None if r.url.startswith((self.server.url.split('?')[0][:20], 'data:', 'blob:')) else complain(f'asks another machine: {r.url}'))

    @property
    def box(self): return self.page.locator('.gnb').first
    def button(self, name): return self.box.locator('button.jupyter-button:not(.widget-toggle-button)').get_by_text(name, exact=True).locator('visible=true').first
    def tab(self, name): return self.box.locator('.widget-toggle-button').get_by_text(name, exact=True).first
    def label(self, name): return self.box.get_by_label(name, exact=True).locator('visible=true').first
    def text(self, what): return self.box.get_by_text(what).locator('visible=true').first

    def open(self, theme='light'):
        "Open the laboratory and wait until it is there; the theme is for Voila, JupyterLab is light until `darken`"
        if self.server.kind == 'app': self.page.goto(f'{self.server.url}&theme={theme}')
        else:
            self.page.goto(f'{self.server.url}&reset')
            self.idle()
            self.menu('Run', 'runmenu:run-all')
        return self.ready()

    def ready(self):
        self.tab('Choose').wait_for()
        return self

    def idle(self): self.page.locator('#jp-main-statusbar').get_by_text('| Idle').wait_for()   # the kernel's word, not the dot in the toolbar

    def menu(self, name, command):
        "Choose a command of JupyterLab from its menus"
        self.page.get_by_role('menuitem', name=name, exact=True).click()
        self.page.locator(f'.lm-Menu-item[data-command="{command}"]').click()

    def again(self):
        "Lose the kernel and come back: what a restart does in JupyterLab, and a reload in Voila, where the page comes back dark"
        if self.server.kind == 'app': self.page.goto(f'{self.server.url}&theme=dark')
        else:
            self.menu('Kernel', 'runmenu:restart-and-run-all')
            self.page.locator('.jp-Dialog .jp-mod-accept').click()
            self.box.wait_for(state='detached')
        return self.ready()

    def darken(self):
        "Go over to the dark theme; JupyterLab does so in a page that is open"
        self.page.emulate_media(color_scheme='dark')
        dark = self.page.locator('body[data-jp-theme-light="false"]')
        if self.server.kind == 'app': return self if dark.count() else self.open('dark')
        self.page.get_by_role('menuitem', name='Settings', exact=True).click()
        self.page.locator('.lm-Menu-item[data-type="submenu"]').get_by_text('Theme', exact=True).hover()
        self.page.locator('.lm-Menu-item[data-command="apputils:change-theme"]').get_by_text('JupyterLab Dark', exact=True).click()
        dark.wait_for(state='attached')         # the body itself has no height
        return self

    def pick(self, name):
        "Put a preset into the form"
        self.tab('Choose').click()
        menu = self.box.locator('.gnb-presets select')
        menu.wait_for()
        menu.select_option(next(o for o in menu.locator('option').all_inner_texts() if o.split()[0] == name))
        self.picked(name)

    def picked(self, name):
        "Wait until the form holds a preset: its name stands above, with a line about it"
        self.box.locator('b').get_by_text(name, exact=True).locator('visible=true').wait_for()

    def complaints(self) -> list:
        "Everything that went wrong since the last time, in the page or in the kernel"
        out, self.wrong[:] = list(self.wrong), []
        log = self.page.locator('.jp-LogConsoleStatusItem:not(.lm-mod-hidden)')          # JupyterLab counts errors of callbacks and threads
        return out + [f'errors in the kernel: {log.first.inner_text()}' for _ in range(log.count())]

    def shot(self, name):
        "Leave a picture of what is seen"
        SHOTS.mkdir(parents=True, exist_ok=True)
        self.box.evaluate('e => e.scrollIntoView()')
        self.page.screenshot(path=SHOTS/f'{self.server.kind}-{name}.png', full_page=self.server.kind == 'app')

    def too_wide(self) -> list:
        "What does not fit: boxes that can be scrolled sideways, and frames or buttons that cut off what is in them"
        return self.page.evaluate('''() => {
            const out = [], name = e => `${e.tagName.toLowerCase()}.${[...e.classList].join('.')} ${e.scrollWidth}>${e.clientWidth} ${e.textContent.trim().slice(0, 40)}`
            const root = document.scrollingElement
            if (root.scrollWidth > innerWidth) out.push(`page ${root.scrollWidth}>${innerWidth}`)
            for (const box of document.querySelectorAll('.gnb')) {
                for (let e = box.parentElement; e; e = e.parentElement)
                    if (['auto', 'scroll'].includes(getComputedStyle(e).overflowX) && e.scrollWidth > e.clientWidth + 1) out.push('around: ' + name(e))
                for (const e of box.querySelectorAll('*')) {
                    if (!e.clientWidth || e.scrollWidth <= e.clientWidth + 1) continue
                    const how = getComputedStyle(e).overflowX
                    if (['auto', 'scroll'].includes(how) && !['INPUT', 'SELECT'].includes(e.tagName)) out.push('scrolls: ' + name(e))
                    if (how === 'hidden' && e.matches('.gnb-card, .jupyter-button, .widget-label')) out.push('cut off: ' + name(e))
                }
            }
            return [...new Set(out)] }''')


    def too_faint(self) -> list:
        "Words and axes whose contrast with what is behind them is below 4.5, the AA of WCAG (hints may be paler)"
        return self.page.evaluate('''() => {
            const rgb = c => c.match(/[\\d.]+/g).map(Number), seen = e => e.getClientRects().length && e.textContent.trim()
            const light = c => [.2126, .7152, .0722].reduce((s, w, i) => s + w * ((v => v <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4)(c[i] / 255)), 0)
            const behind = e => { for (; e; e = e.parentElement) { const c = rgb(getComputedStyle(e).backgroundColor); if (c.length < 4 || c[3] > .5) return c } return [255, 255, 255] }
            return [...document.querySelectorAll('.gnb .gnb-title, .gnb svg.gnb-picture, .gnb .widget-label, .gnb td, .gnb summary')].filter(seen).map(e => {
                const [a, b] = [rgb(getComputedStyle(e).color), behind(e)].map(light)
                return [(Math.max(a, b) + .05) / (Math.min(a, b) + .05), e.textContent.trim().slice(0, 30)]
            }).filter(o => o[0] < 4.5) }''')

    def is_dark(self) -> bool:
        "Are the words of our panels lighter than what is behind them?"
        return self.box.evaluate('''e => {
            const sum = c => c.match(/[\\d.]+/g).slice(0, 3).map(Number).reduce((a, b) => a + b), clear = c => / 0\\)$/.test(c)
            let b = e; while (b.parentElement && clear(getComputedStyle(b).backgroundColor)) b = b.parentElement
            return sum(getComputedStyle(e.querySelector('.gnb-title, .widget-label')).color) > sum(getComputedStyle(b).backgroundColor) }''')

"The site as a reader meets it: built from the notebooks, complete, free of broken links, and usable on a phone."
import functools
import http.server
import json
import os
import re
import runpy
import shutil
import subprocess
import sys
import threading
import zlib
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urljoin

import pytest
from waiting import LIMIT

ROOT = Path(__file__).resolve().parent.parent
ROOMS = dict(tasks='Tasks', models='Models', train='Training', theory='Theory', analysis='Analysis', papers='Papers', bench='Benchmark', lab='Lab')
MATHML = set('math mi mn mo ms mtext mspace mrow mfrac msqrt mroot mstyle mpadded mphantom menclose msub msup msubsup munder mover munderover mtable mtr mtd'.split())
NOT_PROSE = {'code', 'pre', 'script', 'style', 'math'}
COLOURS = re.compile(r'<span class="[a-z0-9]{1,3}">([^<]*)</span>')    # of words of code: four of five tags, with nothing in them that is checked
VOID = {'area', 'base', 'br', 'col', 'embed', 'hr', 'img', 'input', 'link', 'meta', 'source', 'track', 'wbr'}


class Html(HTMLParser):
    "What the checks need to know of one page"
    def __init__(self, path):
        super().__init__()
        self.ids, self.links, self.assets, self.prose, self.outputs, self.formulas = [], [], [], [], [], set()
        self.open = [('', False, False, False)]      # tags, and whether each is in a formula, an output, or anything but prose
        self.feed(COLOURS.sub(r'\1', path.read_text(encoding='utf-8')))
        self.prose, self.outputs = ''.join(self.prose), ''.join(self.outputs)

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        _, math, out, other = self.open[-1]
        math = math or tag == 'math'
        if tag not in VOID: self.open.append((tag, math, out or 'nb-out' in (attrs.get('class') or ''), other or tag in NOT_PROSE))
        if 'id' in attrs: self.ids.append(attrs['id'])
        if tag == 'a' and 'href' in attrs: self.links.append(attrs['href'])
        if tag in ('img', 'script', 'source', 'iframe') and 'src' in attrs: self.assets.append(attrs['src'])
        if tag == 'link' and attrs.get('rel') not in ('canonical', 'prev', 'next'): self.assets.append(attrs['href'])
        if math: self.formulas.add(tag)

    def handle_endtag(self, tag):
        while len(self.open) > 1 and self.open.pop()[0] != tag: pass

    def handle_data(self, data):
        _, _, out, other = self.open[-1]
        if out: self.outputs.append(data)
        if not other: self.prose.append(data)


def notebooks():
    "The notebooks that should each have a page, and the address of that page"
    found = [f.relative_to(ROOT/'nbs') for room in (*ROOMS, '.') for f in sorted((ROOT/'nbs'/room).glob('[!_.]*.ipynb')) if not f.is_symlink()]
    return {'index.ipynb': 'index.html', **{f'nbs/{f.as_posix()}': f.with_name(re.sub(r'^[0-9]+[a-z0-9]*_', '', f.stem.lower()) + '.html').as_posix() for f in found}}


def symbols():
    "Public names of the package and the page that should document each"
    for module, syms in runpy.run_path(str(ROOT/'grok_nb/_modidx.py'))['d']['syms'].items():
        public = re.search(r'^__all__ = (\[.*?\])', (ROOT/(module.replace('.', '/') + '.py')).read_text(encoding='utf-8'), re.S | re.M)
        for full, (where, _) in syms.items():
            name = full.removeprefix(module + '.')
            if public and f"'{name}'" in public[1]: yield where.partition('#')[0], name


def build(out, root=ROOT): return subprocess.run([sys.executable, str(root/'dev/docs.py'), '--out', str(out)], text=True, capture_output=True)


@pytest.fixture(scope='session')
def built(tmp_path_factory):
    "The folder with the site and what the build said"
    out = tmp_path_factory.mktemp('docs')/'site'
    done = build(out)
    assert done.returncode == 0, done.stdout + done.stderr
    return out, done.stdout + done.stderr


@pytest.fixture(scope='session')
def site(built): return built[0]


@pytest.fixture(scope='session')
def pages(site): return {f.relative_to(site).as_posix(): Html(f) for f in sorted(site.rglob('*.html')) if f.name != '404.html'}


def test_build_is_quiet(built):
    assert re.fullmatch(r'\d+ pages in \S+\s*', built[1]), built[1]


def test_one_page_for_each_notebook(pages):
    assert [nb for nb, page in notebooks().items() if page not in pages] == []
    extra = {page: f for f, page in (('CHANGELOG.md', 'changelog.html'), ('CONTRIBUTING.md', 'contributing.html')) if (ROOT/f).exists()}
    assert set(pages) == {*notebooks().values(), *extra}


def test_navigation_has_every_room(site, pages):
    html = (site/'index.html').read_text(encoding='utf-8')
    nav = html[html.index('md-nav--primary'):]
    places = [nav.find(title, nav.find('Tour')) for room, title in ROOMS.items() if any(p.startswith(room + '/') for p in pages)]
    assert -1 not in places and places == sorted(places)
    assert set(notebooks().values()) <= {link.removeprefix('./') for link in pages['index.html'].links}


def test_no_broken_link(site, pages):
    broken = []
    for name, page in pages.items():
        for link in page.links:
            if re.match(r'https?:|mailto:', link): continue
            path, _, fragment = urljoin(f'http://site/{name}', link).removeprefix('http://site/').partition('#')
            if not (site/unquote(path)).exists() or (fragment and unquote(fragment) not in pages[path].ids): broken.append((name, link))
    assert broken == []


def test_anchors_are_unique(pages):
    twice = {name: sorted({i for i in page.ids if page.ids.count(i) > 1}) for name, page in pages.items()}
    assert {k: v for k, v in twice.items() if v} == {}


def test_assets_are_in_the_site(site, pages):
    "Images, scripts and styles exist, and none comes from elsewhere"
    missing = [(name, a) for name, page in pages.items() for a in page.assets
               if re.match(r'https?:|//', a) or not (site/urljoin(f'http://site/{name}', a).removeprefix('http://site/')).exists()]
    assert missing == []
    for css in site.rglob('*.css'): assert not re.search(r'url\(["\']?(https?:)?//|@import', css.read_text(encoding='utf-8')), css


def test_formulas_are_mathml(pages):
    left = [(name, m[0]) for name, page in pages.items() for m in re.finditer(r'\$[^$\n]+\$|\\\(|\\\[|\\begin\{', page.prose)]
    assert left == []
    used = any('$' in ''.join(c['source']) for nb in notebooks() for c in json.loads((ROOT/nb).read_text(encoding='utf-8'))['cells'] if c['cell_type'] == 'markdown')
    tags = set().union(*(p.formulas for p in pages.values()))
    assert 'math' in tags or not used
    assert tags <= MATHML


def test_every_public_name_is_documented(pages):
    assert [(page, name) for page, name in symbols() if name not in pages[page].ids] == []


def test_no_page_shows_an_error(pages):
    assert [name for name, page in pages.items() if 'Traceback (most recent call last)' in page.outputs] == []


# ---- A small project, to see what the tools do with things that must not be in ours ----

def cell(source, kind='code', outputs=()):
    "One cell of a notebook"
    return dict(cell_type=kind, id=f'{zlib.crc32(source.encode()):08x}', metadata={}, source=source.splitlines(True),
                **(dict(outputs=list(outputs), execution_count=None) if kind == 'code' else {}))


def write_nb(path, *cells):
    "A notebook made of `cells`"
    nb = dict(cells=list(cells), metadata=dict(kernelspec=dict(display_name='python3', language='python', name='python3')), nbformat=4, nbformat_minor=5)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(nb), encoding='utf-8')


def project(tmp_path):
    "A project with our tools and settings, a tour and an empty package"
    for name in ('dev/docs.py', 'dev/docs.css', 'dev/passed.py', 'dev/run_nbs.py', 'settings.ini'):
        (tmp_path/name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT/name, tmp_path/name)
    (tmp_path/'grok_nb').mkdir()
    (tmp_path/'grok_nb/__init__.py').write_text('')
    (tmp_path/'grok_nb/_modidx.py').write_text("d = {'syms': {}, 'settings': {}}")
    write_nb(tmp_path/'index.ipynb', cell('# Tour\n\n> A subtitle\n\nText under it with $x_1$.', 'markdown'))
    (tmp_path/'nbs').mkdir()
    (tmp_path/'nbs/index.ipynb').symlink_to('../index.ipynb')
    return tmp_path


@pytest.fixture
def small(tmp_path): return project(tmp_path)


def test_build_stops_at_every_mistake(small):
    broken = [
        (cell('[gone](02_gone.ipynb)', 'markdown'), 'broken link 02_gone.ipynb'),
        (cell('[gone](#nowhere)', 'markdown'), 'no heading #nowhere'),
        (cell('![gone](gone.png)', 'markdown'), 'broken link gone.png'),
        (cell(r'$\foo{x}$', 'markdown'), 'unknown command in the formula'),
        (cell('1/0', outputs=[dict(output_type='error', ename='ZeroDivisionError', evalue='division by zero', traceback=[])]), 'the stored output is an error'),
    ]
    for i, (bad, _) in enumerate(broken): write_nb(small/f'nbs/tasks/1{i}_bad{i}.ipynb', cell(f'# Bad {i}', 'markdown'), bad)
    done = build(small/'_docs', small)
    assert done.returncode == 1 and not (small/'_docs').exists()
    for i, (_, says) in enumerate(broken): assert f'nbs/tasks/1{i}_bad{i}.ipynb, cell 1: {says}' in done.stderr


@pytest.fixture(scope='module')
def twice(tmp_path_factory):
    "A small project with three of our notebooks (without their links), built two times: the project and what was said"
    small = project(tmp_path_factory.mktemp('twice'))
    write_nb(small/'nbs/tasks/01_ok.ipynb', cell('# Good\n\n> [!NOTE]\n> Read [the tour](../../index.ipynb#Tour).\n- a list\n- right after text', 'markdown'),
             cell('#| hide\nsecret'), cell('#| echo: false\nshown', outputs=[dict(output_type='stream', name='stdout', text=['``` <b> of\n', '# text'])]))
    for name in ('train/16_pool', 'analysis/05_phase_diagram', 'theory/01_cyclic'):
        cells = json.loads((ROOT/f'nbs/{name}.ipynb').read_text(encoding='utf-8'))['cells']
        kept = [c for c in cells if c['cell_type'] == 'code' or '](' not in ''.join(c['source'])]
        write_nb(small/f'nbs/{name}.ipynb', cell(f'# {name}', 'markdown'), *kept)
    return small, [build(small/out, small) for out in ('one', 'two')]


def test_build_of_the_small_project(twice):
    small, done = twice
    assert done[0].returncode == 0, done[0].stderr
    html = (small/'one/tasks/ok.html').read_text(encoding='utf-8')
    assert 'href="../index.html#tour"' in html and 'class="admonition note"' in html and '<li>a list</li>' in html
    assert 'secret' not in html and 'shown' not in html and '&lt;b&gt; of\n# text' in html


def test_build_is_deterministic(twice):
    small, done = twice
    def read(folder): return {f.relative_to(folder).as_posix(): f.read_bytes() for f in folder.rglob('*') if f.is_file()}
    one, two = read(small/'one'), read(small/'two')
    assert one and one.keys() == two.keys(), done[0].stderr
    assert [k for k in one if one[k] != two[k]] == []


def run_nbs(small, *args, **env):
    "Run notebooks of a small project; at no scale, if none is named"
    env = {k: v for k, v in os.environ.items() if k != 'GROK_NB_SCALE'} | env
    return subprocess.run([sys.executable, str(small/'dev/run_nbs.py'), *args], text=True, capture_output=True, cwd='/', env=env)


def test_notebooks_run_to_the_same_bytes(small):
    nb = small/'nbs/tasks/01_run.ipynb'
    write_nb(nb, cell('# Run', 'markdown'), cell('import os, random, sys'), cell('print("\\r 50%|", end="", file=sys.stderr); object()'),
             cell('#| slow\n1/0', outputs=[dict(output_type='stream', name='stdout', text=['kept'])]), cell('#| eval: false\n1/0'), cell('os.environ["GROK_NB_SCALE"]'))
    seen = []
    for _ in range(2):
        done = run_nbs(small)
        assert done.returncode == 0, done.stderr
        seen.append(nb.read_bytes())
    outputs = [c['outputs'] for c in json.loads(seen[0])['cells'] if c['cell_type'] == 'code']
    assert seen[0] == seen[1] and outputs[0] == outputs[3] == []
    assert [outputs[1][0]['data']['text/plain'], outputs[2][0]['text'], outputs[4][0]['data']['text/plain']] == [['<object>'], ['kept'], ["'cpu'"]]
    assert (small/'nbs/index.ipynb').is_symlink()


def test_a_failing_notebook_is_named_and_left_alone(small):
    nb = small/'nbs/tasks/01_run.ipynb'
    write_nb(nb, cell('# Run', 'markdown'), cell('1+1'), cell('1/0'))
    before = nb.read_bytes()
    done = run_nbs(small, str(nb))
    assert done.returncode == 1 and 'nbs/tasks/01_run.ipynb, cell 2 failed: ZeroDivisionError' in done.stderr
    assert nb.read_bytes() == before


# ---- In a browser ----

class Quiet(http.server.SimpleHTTPRequestHandler):
    "A server that does not print each request"
    def log_message(self, *args): pass


@pytest.fixture(scope='session')
def url(site):
    with http.server.ThreadingHTTPServer(('127.0.0.1', 0), functools.partial(Quiet, directory=site)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f'http://127.0.0.1:{server.server_port}/'
        server.shutdown()


def open_page(browser, size, scheme, wrong, **more):
    "A fresh page that writes down whatever goes wrong"
    page = browser.new_context(viewport=dict(zip(('width', 'height'), size)), color_scheme=scheme, **more).new_page()
    page.set_default_timeout(1000*LIMIT)
    page.on('console', lambda m: wrong.append(m.text) if m.type in ('error', 'warning') else None)
    page.on('pageerror', lambda e: wrong.append(str(e)))
    page.on('requestfailed', lambda r: wrong.append(r.url) if r.failure != 'net::ERR_ABORTED' else None)   # aborted: we went on to the next page
    return page


def fits(page, name):
    "What is wrong with the width of a page"
    width, screen = page.evaluate('[document.scrollingElement.scrollWidth, innerWidth]')
    return [f'{name} is {width} wide on a screen of {screen}'] if width > screen else []


@pytest.mark.parametrize('scheme', ['light', 'dark'])
@pytest.mark.parametrize('size', [(390, 844), (1400, 900)], ids=['phone', 'desktop'])
def test_pages_fit_the_screen(browser, url, site, pages, size, scheme):
    "The tour in every setting, and the longest page of each room where it is narrowest"
    wrong = []
    page = open_page(browser, size, scheme, wrong)
    longest = [max((o for o in pages if o.startswith(room + '/')), key=lambda o: (site/o).stat().st_size) for room in ROOMS]
    for name in ['index.html', *longest] if size[0] < 400 and scheme == 'light' else ['index.html']:
        page.goto(url + name, wait_until='load')
        wrong += fits(page, name)
        assert page.evaluate('document.body.dataset.mdColorScheme') == ('slate' if scheme == 'dark' else 'default')
    page.context.close()
    assert wrong == []


def test_every_page_fits_a_phone(browser, url, pages):
    "Also without scripts, which are the same for all pages and take most of a page's time"
    wrong = []
    page = open_page(browser, (390, 844), 'light', wrong, java_script_enabled=False)
    for name in pages:
        page.goto(url + name, wait_until='load')
        wrong += fits(page, name)
    page.set_content('<p style="width: 2000px">wide</p>')
    assert fits(page, 'a wide one') == ['a wide one is 2008 wide on a screen of 390']
    page.context.close()
    assert wrong == []


def test_search_finds_a_symbol(browser, url):
    where, name = max(symbols(), key=lambda s: len(s[1]))
    wrong = []
    page = open_page(browser, (1400, 900), 'light', wrong)
    page.goto(url)
    page.locator('button.md-search__button').click()
    page.keyboard.type(name)
    page.locator(f'a[href*="{where}?h="][href$="#{name}"]').first.click()
    page.wait_for_url(f'**/{where}*')
    page.context.close()
    assert wrong == []

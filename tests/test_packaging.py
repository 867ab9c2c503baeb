"What is shipped, pinned and promised by the commands: the parts that no notebook can show."
import ast
import json
import re
import shlex
import shutil
import subprocess
import sys
import zipfile
from configparser import ConfigParser
from pathlib import Path

import pytest
from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent
PIP = [sys.executable, '-m', 'pip', '--disable-pip-version-check', '--no-input']


@pytest.fixture(scope='module')
def cfg():
    c = ConfigParser(delimiters=['='])
    c.read(ROOT/'settings.ini', encoding='utf-8')
    return c['DEFAULT']


def run(*cmd, **kw):
    "Standard output of `cmd`; its error output is shown when it fails"
    res = subprocess.run([str(o) for o in cmd], capture_output=True, text=True, **kw)
    assert res.returncode == 0, f'{shlex.join(map(str, cmd))}\n{res.stdout}\n{res.stderr}'
    return res.stdout


# --- the wheel -----------------------------------------------------------------------------------------------------

@pytest.fixture(scope='module')
def wheel(tmp_path_factory):
    "A wheel built from a copy of the tree, so that no build folder is left behind"
    tmp = tmp_path_factory.mktemp('wheel')
    src = tmp/'src'
    src.mkdir()
    for f in ('settings.ini', 'setup.py', 'MANIFEST.in', 'README.md', 'LICENSE'): shutil.copy(ROOT/f, src)
    for d in ('grok_nb', 'nbs', 'tests'): shutil.copytree(ROOT/d, src/d, symlinks=True, ignore=shutil.ignore_patterns('__pycache__', 'shots'))
    # by way of a source archive, since that is how others build: what the archive lacks, the wheel lacks
    run(sys.executable, 'setup.py', '-q', 'sdist', '-d', tmp, cwd=src)
    run(*PIP, 'wheel', '-q', '--no-deps', '--no-index', '--no-build-isolation', '-w', tmp, next(tmp.glob('*.tar.gz')))
    return next(tmp.glob('*.whl'))


@pytest.fixture(scope='module')
def installed(wheel, tmp_path_factory):
    "A folder with only the wheel in it"
    to = tmp_path_factory.mktemp('site')
    run(*PIP, 'install', '-q', '--no-deps', '--no-index', '--no-compile', '--target', to, wheel)
    return to


def test_wheel_has_the_package_and_nothing_else(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    assert {n.split('/')[0] for n in names} == {'grok_nb', next(n for n in names if n.endswith('METADATA')).split('/')[0]}
    want = {str(f.relative_to(ROOT)) for f in (ROOT/'grok_nb').rglob('*.py') if f.name != '_modidx.py'}
    assert {n for n in names if n.endswith('.py')} == want
    assert [n for n in names if n.endswith('.ipynb')] == ['grok_nb/lab/laboratory.ipynb']


def test_the_laboratory_is_shipped_and_copied_to_where_it_may_be_saved(wheel, installed, tmp_path):
    want = (ROOT/'nbs/lab/12_laboratory.ipynb').read_bytes()
    assert zipfile.ZipFile(wheel).read('grok_nb/lab/laboratory.ipynb') == want
    code = f'import sys; sys.path.insert(0, {str(installed)!r}); from grok_nb.lab.serve import notebook; print(*notebook(), sep="\\n")'
    where, root = run(sys.executable, '-I', '-c', code, cwd=tmp_path).splitlines()
    assert Path(where) == Path(root)/'laboratory.ipynb' and Path(root) == tmp_path.resolve()
    assert json.loads(Path(where).read_bytes())['cells'] == json.loads(want)['cells']


def test_wheel_metadata(wheel, cfg):
    z = zipfile.ZipFile(wheel)
    meta = z.read(next(n for n in z.namelist() if n.endswith('dist-info/METADATA'))).decode()
    assert f"\nVersion: {cfg['version']}\n" in meta
    assert f"\nRequires-Python: >={cfg['min_python']}\n" in meta
    need = {canonicalize_name(Requirement(o).name) for o in re.findall(r'^Requires-Dist: (.+)$', meta, re.M) if 'extra ==' not in o}
    assert need == {canonicalize_name(Requirement(o).name) for o in shlex.split(cfg['requirements'])}
    for extra in ('dev', 'lab', 'cluster', 'search'):
        more = {canonicalize_name(Requirement(o).name) for o in re.findall(rf'^Requires-Dist: (.+); extra == .{extra}.$', meta, re.M)}
        assert more == {canonicalize_name(Requirement(o).name) for o in shlex.split(cfg[f'{extra}_requirements'])}


def test_wheel_imports_from_where_it_was_installed(installed, cfg, tmp_path):
    # -I keeps the checkout and PYTHONPATH out; the first entry of the path is then the wheel's folder.
    code = f'import sys; sys.path.insert(0, {str(installed)!r}); import grok_nb; print(grok_nb.__file__, grok_nb.__version__, sep="\\n")'
    where, version = run(sys.executable, '-I', '-c', code, cwd=tmp_path).split('\n')[:2]
    assert Path(where).parent.parent == installed
    assert version == cfg['version']


def test_wheel_command_line(installed, tmp_path):
    entry = next(installed.glob('*.dist-info'))/'entry_points.txt'
    mod, func = re.search(r'^grok-nb *= *([\w.]+):(\w+)$', entry.read_text(), re.M).groups()
    code = (f'import sys; sys.path.insert(0, {str(installed)!r}); sys.argv = ["grok-nb", "--help"]\n'
            f'from {mod} import {func}; {func}()')
    out = run(sys.executable, '-I', '-c', code, cwd=tmp_path)
    assert 'demo' in out


# --- exported code -------------------------------------------------------------------------------------------------

def imports(f):
    "Top-level names of the packages that file `f` imports"
    for node in ast.walk(ast.parse(f.read_text(encoding='utf-8'))):
        if isinstance(node, ast.Import): yield from (a.name.split('.')[0] for a in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level: yield node.module.split('.')[0]


def test_exported_code_needs_no_development_tool():
    tools = {'nbdev', 'fastcore', 'execnb', 'ghapi', 'fastgit', 'pytest', 'hypothesis', 'playwright'}
    bad = {str(f.relative_to(ROOT)): sorted(tools & set(imports(f))) for f in (ROOT/'grok_nb').rglob('*.py') if f.name != '_modidx.py'}
    assert not {f: t for f, t in bad.items() if t}


def test_version_is_the_same_everywhere(cfg):
    assert f"__version__ = \"{cfg['version']}\"" in (ROOT/'grok_nb/__init__.py').read_text(encoding='utf-8')
    assert f"## [{cfg['version']}]" in (ROOT/'CHANGELOG.md').read_text(encoding='utf-8')


# --- pins ----------------------------------------------------------------------------------------------------------

@pytest.fixture(scope='module')
def pins():
    lines = (ROOT/'constraints.txt').read_text(encoding='utf-8').splitlines()
    return [Requirement(o) for o in lines if o and not o.startswith('#')]


@pytest.mark.parametrize('python', ['3.10', '3.11', '3.12', '3.13', '3.14'])
@pytest.mark.parametrize('system', ['linux', 'darwin'])
def test_every_requirement_is_pinned_once(cfg, pins, python, system):
    # .12 is newer than every patch level that a marker speaks of
    env = {**default_environment(), 'python_version': python, 'python_full_version': f'{python}.12', 'sys_platform': system}
    live = [p for p in pins if p.marker is None or p.marker.evaluate(env)]
    names = [canonicalize_name(p.name) for p in live]
    assert len(names) == len(set(names))
    at = {canonicalize_name(p.name): str(p.specifier)[2:] for p in live}
    for o in shlex.split(f"{cfg['requirements']} {cfg['dev_requirements']} {cfg['lab_requirements']} {cfg['cluster_requirements']} {cfg['search_requirements']}"):
        r = Requirement(o)
        if r.marker and not r.marker.evaluate(env): continue
        name = canonicalize_name(r.name)
        assert name in at, f'{name} has no pin: make constraints'
        assert r.specifier.contains(at[name], prereleases=True), f'{name}=={at[name]} does not fit {o}: make constraints'


def test_pins_are_exact_and_name_no_place(pins):
    assert all(re.fullmatch(r'==[\w.!]+', str(p.specifier)) for p in pins)
    text = (ROOT/'constraints.txt').read_text(encoding='utf-8')
    assert '://' not in text and '--' not in text
    assert not re.search(r'^(nvidia|cuda|triton)', text, re.M)


# --- commands ------------------------------------------------------------------------------------------------------

needs_make = pytest.mark.skipif(not shutil.which('make'), reason='no make on this machine')


@needs_make
def test_help_lists_every_command():
    phony = re.search(r'^\.PHONY: (.+)$', (ROOT/'Makefile').read_text(encoding='utf-8'), re.M)[1].split()
    rules = re.findall(r'^([a-z][a-z-]*):(?! export)', (ROOT/'Makefile').read_text(encoding='utf-8'), re.M)
    assert sorted(phony) == sorted(rules)
    listed = re.findall(r'^  make (\S+) +\S', run('make', '-C', ROOT, '--no-print-directory'), re.M)
    assert sorted(listed) == sorted(phony)


def script(path, text):
    "A program of a few lines of shell"
    path.write_text(f'#!/bin/sh\n{text}\n')
    path.chmod(0o755)


@pytest.fixture
def bare(tmp_path):
    "What set-up needs of a checkout, on a machine that has a shell and its tools, and no Python and no browser"
    root, tools = tmp_path/'a checkout', tmp_path/'bin'
    (root/'dev').mkdir(parents=True)
    tools.mkdir()
    for f in ('Makefile', 'settings.ini', 'setup.py', 'constraints.txt', 'dev/setup.sh'): shutil.copy(ROOT/f, root/f)
    for o in ('make', 'sh', 'sed', 'cat', 'cksum', 'dirname', 'grep', 'mkdir', 'cp', 'mv', 'rm', 'tail'): (tools/o).symlink_to(shutil.which(o))
    script(tools/'uname', 'echo Linux')
    return root


def make(root, *words, **env):
    "What `make` says and what it complains about, in `root` and with nothing but the tools beside it"
    res = subprocess.run(['make', *words], cwd=root, capture_output=True, text=True, env=dict(PATH=str(root.parent/'bin'), HOME=str(root), **env))
    ours = lambda text: [o.removeprefix('grok_nb: ') for o in text.splitlines() if o.startswith('grok_nb: ')]
    return res.returncode, ours(res.stdout), ours(res.stderr)


def python(root, version='3.12', torch=True, pip=':'):
    "A Python that only answers what set-up asks; `pip` is what it does when it is to install something"
    pinned = re.search(r'^torch==([^ ;]+)', (ROOT/'constraints.txt').read_text(encoding='utf-8'), re.M)[1] + '+cpu'
    script(root.parent/'bin/python3', f"""case "$*" in
*version_info*) echo {version} ;;
*'version("torch")'*) echo {pinned if torch else ''} ;;
"-m venv .venv") mkdir -p .venv/bin; cp "$0" .venv/bin/python ;;
*"pip install"*) {pip} ;;
esac""")


@needs_make
def test_too_old_a_python_is_refused_in_one_line(bare):
    python(bare, '3.9')
    old = bare.parent/'python old'
    (bare.parent/'bin/python3').rename(old)
    code, _, wrong = make(bare, 'demo', f'PYTHON={old}')
    assert code and not (bare/'.venv').exists()
    assert len(wrong) == 1 and 'needs Python 3.10' in wrong[0] and '3.9' in wrong[0]


@needs_make
def test_without_a_suitable_python_the_path_is_said_to_lack_one(bare):
    code, _, wrong = make(bare, 'demo')
    assert code and wrong == ['needs Python 3.10 to 3.14 on the PATH; install one, or name it: PYTHON=/path/to/python make setup']
    python(bare, '3.9')
    code, _, wrong = make(bare, 'demo')
    assert code and not (bare/'.venv').exists()
    assert wrong == ['needs Python 3.10 to 3.14 on the PATH, but python3 is 3.9; install one, or name it: PYTHON=/path/to/python make setup']


@needs_make
def test_a_machine_without_a_browser_is_told_so_in_one_line(bare):
    python(bare)
    browser = [o for o in make(bare, 'setup')[1] if 'no Chromium on this machine' in o]
    assert len(browser) == 1 and (bare/'.venv/.ready').exists()
    assert make(bare, 'setup') == (0, browser, [])                    # who asks again hears it again
    assert make(bare, 'check') == (0, [], [])                         # who wants something else does not
    (bare.parent/'bin/chromium').symlink_to(shutil.which('sh'))
    assert make(bare, 'setup') == (0, [], [])


@needs_make
@pytest.mark.parametrize('why, says', [('no matching distribution', 'no CPU build of torch'), ('Read timed out', "the index of torch's CPU builds could not be reached")])
def test_the_large_build_of_torch_is_announced_before_it_is_fetched(bare, why, says):
    "Where the small one cannot be had; `make setup` writes to a file here, which pip looks at when it begins"
    python(bare, torch=False, pip=f"""case "$*" in
    *+cpu) echo '{why}'; exit 1 ;;
    *torch==*) cp said before ;;
    esac""")
    with open(bare/'said', 'w') as said: subprocess.run(['make', 'setup'], cwd=bare, stdout=said, env=dict(PATH=str(bare.parent/'bin')))
    last = [o for o in (bare/'before').read_text().splitlines() if 'several GB' in o]
    assert len(last) == 1 and says in last[0] and 'taking the standard one' in last[0]
    shutil.rmtree(bare/'.venv')
    code, _, wrong = make(bare, 'setup', 'TORCH=cpu')
    assert code and len(wrong) == 1 and says in wrong[0] and 'TORCH=auto takes what there is' in wrong[0]


def test_ci_runs_what_people_run():
    ci = ROOT/'.ci/run'
    assert ci.stat().st_mode & 0o111
    assert ci.read_text(encoding='utf-8').rstrip().endswith('\nmake test')
    for name, command in (('test', 'make test '), ('kill', 'make test-kill ')):
        assert f'- run: {command}' in (ROOT/f'.github/workflows/{name}.yml').read_text(encoding='utf-8')


# --- the checker of notebooks and code -----------------------------------------------------------------------------

NB = '''{"cells": [{"cell_type": "code", "execution_count": null, "id": "a0", "metadata": {}, "outputs": [], "source": ["#| default_exp a"]},
 {"cell_type": "code", "execution_count": null, "id": "a1", "metadata": {}, "outputs": [], "source": ["#| export\\n", "x = 1"]},
 {"cell_type": "code", "execution_count": null, "id": "a2", "metadata": {}, "outputs": [%s], "source": ["x"]}],
 "metadata": {}, "nbformat": 4, "nbformat_minor": 5}'''
OUT = '{"data": {"text/plain": ["1"]}, "execution_count": null, "metadata": {}, "output_type": "execute_result"}'


@pytest.fixture(scope='module')
def exported(tmp_path_factory):
    "A project of one notebook, exported and cleaned, with the checker in it"
    root = tmp_path_factory.mktemp('exported')/'a project'
    for d in ('nbs', 'dev', 'grok_nb'): (root/d).mkdir(parents=True)
    shutil.copy(ROOT/'settings.ini', root)
    shutil.copy(ROOT/'dev/check.py', root/'dev')
    (root/'grok_nb/__init__.py').write_text('')
    (root/'nbs/00_a.ipynb').write_text(NB % OUT)
    for cmd in ('nbdev_export', 'nbdev_clean'): run(Path(sys.executable).parent/cmd, cwd=root)
    return root


@pytest.fixture
def tiny(exported, tmp_path):
    "A copy of it that may be spoilt"
    return shutil.copytree(exported, tmp_path/exported.name)


def check(root, what):
    "What the checker says of `root`, empty when all is well"
    before = {f: f.read_bytes() for f in root.rglob('*') if f.is_file()}
    res = subprocess.run([sys.executable, root/'dev/check.py', what], capture_output=True, text=True)
    assert {f: f.read_bytes() for f in root.rglob('*') if f.is_file()} == before
    assert bool(res.stderr) == bool(res.returncode)
    return res.stderr


def test_checker_accepts_what_is_in_step(tiny):
    assert not check(tiny, 'sync') and not check(tiny, 'clean')


def test_checker_sees_edited_code(tiny):
    f = tiny/'grok_nb/a.py'
    f.write_text(f.read_text().replace('x = 1', 'x = 2'))
    said = check(tiny, 'sync')
    assert 'grok_nb/a.py differs from nbs/00_a.ipynb' in said and 'make prepare' in said


def test_checker_sees_a_missing_and_a_left_over_module(tiny):
    (tiny/'grok_nb/a.py').rename(tiny/'grok_nb/b.py')
    said = check(tiny, 'sync')
    assert 'grok_nb/a.py is missing' in said and 'grok_nb/b.py: no notebook exports it' in said


def test_checker_sees_two_notebooks_for_one_module(tiny):
    shutil.copy(tiny/'nbs/00_a.ipynb', tiny/'nbs/01_a.ipynb')
    assert 'nbs/01_a.ipynb and nbs/00_a.ipynb both export to a' in check(tiny, 'sync')


def test_checker_sees_noise_and_lost_outputs(tiny):
    nb = tiny/'nbs/00_a.ipynb'
    nb.write_text(nb.read_text().replace('"execution_count": null', '"execution_count": 7'))
    assert 'nbs/00_a.ipynb carries noise' in check(tiny, 'clean')
    nb.write_text(NB % '')
    assert 'nbs/00_a.ipynb shows no output' in check(tiny, 'clean')

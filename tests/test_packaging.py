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
    want = {str(f.relative_to(ROOT)) for f in (ROOT/'grok_nb').rglob('*.py')}
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


@needs_make
def test_too_old_a_python_is_refused_in_one_line(tmp_path):
    old = tmp_path/'python old'
    old.write_text('#!/bin/sh\necho 3.9\n')
    old.chmod(0o755)
    for f in ('Makefile', 'settings.ini', 'setup.py', 'constraints.txt'): shutil.copy(ROOT/f, tmp_path)
    (tmp_path/'dev').mkdir()
    shutil.copy(ROOT/'dev/setup.sh', tmp_path/'dev')
    res = subprocess.run(['make', 'demo', f'PYTHON={old}'], cwd=tmp_path, capture_output=True, text=True)
    assert res.returncode and not (tmp_path/'.venv').exists()
    said = [o for o in res.stderr.splitlines() if o.startswith('grok_nb:')]
    assert len(said) == 1 and 'needs Python 3.10' in said[0] and '3.9' in said[0]


def test_ci_runs_what_people_run():
    ci = ROOT/'.ci/run'
    assert ci.stat().st_mode & 0o111
    assert ci.read_text(encoding='utf-8').rstrip().endswith('\nmake test')
    assert 'make test' in (ROOT/'.github/workflows/test.yml').read_text(encoding='utf-8')


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

"Which notebooks have passed at the cpu scale is written down: by which commit, for each that there is, and by many at once."
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from test_docs import cell, project, run_nbs, write_nb

ROOT = Path(__file__).resolve().parent.parent
CLAIMS = 'nbs/papers/claims'


@pytest.fixture
def small(tmp_path):
    "A small project with one notebook, committed"
    small = project(tmp_path)
    (small/'.gitignore').write_text('.test/\n')
    write_nb(small/'nbs/tasks/01_run.ipynb', cell('# Run', 'markdown'), cell('1 + 1'))
    git(small, 'init', '-q')
    commit(small)
    return small


def git(small, *words):
    "Nobody's settings play a part"
    env = os.environ | dict(GIT_CONFIG_GLOBAL=os.devnull, GIT_CONFIG_SYSTEM=os.devnull)
    return subprocess.run(['git', '-c', 'user.name=nobody', '-c', 'user.email=', *words], cwd=small, env=env, check=True, capture_output=True, text=True).stdout.strip()


def commit(small):
    git(small, 'add', '-A')
    git(small, 'commit', '-qm', 'A step')


def head(small): return git(small, 'rev-parse', '--short', 'HEAD')


def ran(small, **env):
    "What is written down after all notebooks were run; a notebook that failed is no fault here"
    run_nbs(small, **env)
    path = small/CLAIMS/'passed.json'
    return {k: v['commit'] for k, v in json.loads(path.read_text()).items()} if path.exists() else None


def test_every_notebook_is_written_down_and_no_other():
    known = set(json.loads((ROOT/CLAIMS/'passed.json').read_text(encoding='utf-8')))
    code = 'import sys; sys.path.insert(0, "dev"); import passed; print(*map(passed.name, passed.notebooks()), sep="\\n")'
    there = set(subprocess.run([sys.executable, '-c', code], cwd=ROOT, check=True, capture_output=True, text=True).stdout.split())
    assert known == there, f'make test-cpu NB="{" ".join(sorted(there - known))}"; no notebook any more: {sorted(known - there)}'


def test_a_run_at_the_cpu_scale_is_written_down_and_renewed_outputs_are_no_change(small):
    tour = 'index.ipynb'
    assert ran(small) == {tour: head(small), 'nbs/tasks/01_run.ipynb': head(small)}
    assert '"outputs": []' not in (small/'nbs/tasks/01_run.ipynb').read_text() and git(small, 'status', '--porcelain')
    assert set(ran(small).values()) == {head(small)}                  # outputs are new; so is a record of claims
    commit(small)
    assert set(ran(small).values()) == {head(small)}


@pytest.mark.parametrize('change', ['a cell', 'a new notebook', 'the package', 'a notebook gone'])
def test_what_was_run_with_other_code_than_the_commit_says_so(small, change):
    if change == 'a cell': write_nb(small/'nbs/tasks/01_run.ipynb', cell('# Run', 'markdown'), cell('1 + 2'))
    if change == 'a new notebook': write_nb(small/'nbs/tasks/02_new.ipynb', cell('# New', 'markdown'), cell('1 + 2'))
    if change == 'the package': (small/'grok_nb/more.py').write_text('x = 1')
    if change == 'a notebook gone': (small/'nbs/tasks/01_run.ipynb').unlink()
    assert set(ran(small).values()) == {f'{head(small)} with changes'}


def test_prose_is_no_change(small):
    write_nb(small/'nbs/tasks/01_run.ipynb', cell('# Run, and why', 'markdown'), cell('1 + 1'))
    assert set(ran(small).values()) == {head(small)}


def test_only_what_passes_at_this_scale_is_written_down(small):
    assert ran(small, GROK_NB_SCALE='smoke') is None
    write_nb(small/'nbs/tasks/02_wrong.ipynb', cell('# Wrong', 'markdown'), cell('1/0'))
    assert sorted(ran(small)) == ['index.ipynb', 'nbs/tasks/01_run.ipynb']


def test_what_is_no_notebook_any_more_is_forgotten_and_the_others_keep_their_line(small):
    path = small/CLAIMS/'passed.json'
    path.parent.mkdir(parents=True)
    old = dict(date='2030-01-01', commit='abc')
    write_nb(small/'nbs/tasks/02_wrong.ipynb', cell('# Wrong', 'markdown'), cell('1/0'))
    path.write_text(json.dumps({'nbs/tasks/00_gone.ipynb': old, 'nbs/tasks/02_wrong.ipynb': old}))
    assert 'nbs/tasks/00_gone.ipynb' not in ran(small)
    assert json.loads(path.read_text())['nbs/tasks/02_wrong.ipynb'] == old


def test_two_jobs_at_once_lose_nothing(small):
    for i in range(40): write_nb(small/f'nbs/tasks/1{i:02}_one.ipynb', cell('1'))
    code = 'import sys; sys.path.insert(0, "dev"); import passed\ninput()\nfor f in passed.notebooks()[int(sys.argv[1])::4]: passed.record(f, "abc")'
    jobs = [subprocess.Popen([sys.executable, '-c', code, str(i)], cwd=small, stdin=subprocess.PIPE, text=True) for i in range(4)]
    for p in jobs: p.stdin.write('begin\n'); p.stdin.flush()
    for p in jobs: p.communicate()
    assert [p.returncode for p in jobs] == [0]*4
    assert len(json.loads((small/CLAIMS/'passed.json').read_text())) == 42

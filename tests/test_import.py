"What importing brings: what was asked for, its methods, and not the rest"
import subprocess
import sys

import pytest
from waiting import LIMIT


def said(code):
    "What a fresh process prints"
    return subprocess.run([sys.executable, '-c', code], capture_output=True, text=True, check=True, timeout=LIMIT).stdout.split()


def test_fit_brings_no_tables_no_pictures_and_no_chapters():
    names = said("import sys; from grok_nb import fit; print(*sys.modules)")
    assert 'grok_nb.train.fit' in names
    assert not {'pandas', 'matplotlib', 'seaborn', 'scipy', 'sklearn', 'IPython', 'ipywidgets', 'grok_nb.all'} & set(names)
    assert not [n for n in names if n.startswith(('grok_nb.analysis', 'grok_nb.lab', 'grok_nb.papers', 'grok_nb.theory'))]


@pytest.mark.parametrize('code, name', [
    ('from grok_nb.train.experiment import Experiment as C', 'grid zip random predict'),
    ('from grok_nb.train.run import Run as C', 'plot timeline to_dataframe save_figure'),
    ('from grok_nb.train.sweep import SweepResult as C', 'phase_diagram plot best pareto')])
def test_methods_are_there_as_soon_as_the_class_is(code, name):
    "By names under which bound methods are pickled."
    names = name.split()
    assert said(f'{code}; print(*[getattr(C, n).__name__ for n in {names!r}])') == names


def test_a_method_of_ones_own_stays_and_calls_ours_once():
    code = """
from grok_nb.train.run import Run
class Mine(Run):
    def timeline(self): print('mine'); return super().timeline
def plot(self): pass
Run.plot = plot
print(object.__new__(Mine).timeline().__name__, Run.plot is plot, Run.timeline.__module__)
"""
    assert said(code) == ['mine', 'timeline', 'True', 'grok_nb.analysis.curves']


def test_a_bound_method_finds_its_way_to_another_process():
    code = """
import pickle
from grok_nb.all import *
e = Experiment(ModularArithmetic(p=7), MLP(width=4), AdamW(.1))
print(len(pickle.loads(pickle.dumps(e.grid))(lr=[.1, .2])), pickle.loads(pickle.dumps(e.but))(lr=.2).optim.lr)
"""
    assert said(code) == ['2', '0.2']


def test_every_public_name_comes_alone():
    code = "import grok_nb, pathlib; n = grok_nb._where(pathlib.Path(grok_nb.__file__).with_name('all.py'))"
    assert said(f"{code}; print(*[k for k in n if getattr(grok_nb, k) is None])") == []
    assert said(f"{code}; import grok_nb.all as a; print(*[k for k in a.__all__ if getattr(grok_nb, k) is not getattr(a, k)])") == []


def test_all_names_are_offered_before_they_are_imported():
    "As a shell does for grok_nb.<Tab>."
    code = "import sys, grok_nb; print('fit' in dir(grok_nb), 'Experiment' in dir(grok_nb), 'pandas' in sys.modules)"
    assert said(code) == ['True', 'True', 'False']


def test_an_unknown_name_is_refused():
    with pytest.raises(ImportError, match="cannot import name 'nothing_such'"): exec('from grok_nb import nothing_such')

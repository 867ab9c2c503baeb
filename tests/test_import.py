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
    names = name.split()
    assert said(f'{code}; print(*[getattr(C, n).__name__.lstrip("_") for n in {names!r}])')[0] in names


def test_every_public_name_comes_alone():
    code = "import grok_nb, pathlib; n = grok_nb._where(pathlib.Path(grok_nb.__file__).with_name('all.py'))"
    assert said(f"{code}; print(*[k for k in n if getattr(grok_nb, k) is None])") == []
    assert said(f"{code}; import grok_nb.all as a; print(*[k for k in a.__all__ if getattr(grok_nb, k) is not getattr(a, k)])") == []


def test_an_unknown_name_is_refused():
    with pytest.raises(ImportError, match="cannot import name 'nothing_such'"): exec('from grok_nb import nothing_such')

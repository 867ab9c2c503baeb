"A figure that is closed is gone: an afternoon of plots and reports does not fill the memory."
import gc

import matplotlib.pyplot as plt
import pytest
from matplotlib.artist import Artist
from grok_nb.all import AdamW, Boolean, Experiment, Hinge, MLP, fit
from grok_nb.analysis.walsh import plot_walsh, walsh_power
from grok_nb.lab.report import report


def artists():
    "How many parts of figures are alive; asked of their types, since asking objects wakes modules that load late."
    for _ in range(5):                                     # a figure goes in parts, which hold each other
        if not gc.collect(): break
    return sum(issubclass(type(o), Artist) for o in gc.get_objects())


def survivors(draw, times):
    "How many parts of figures so many drawings leave behind; the two before them fill what is filled once."
    def rounds(n):
        for _ in range(n):
            draw()
            plt.close('all')
        return artists()
    return -rounds(2) + rounds(times)


@pytest.fixture(scope='module')
def run(tmp_path_factory):
    "Two networks on a parity of two bits, which both plots can draw."
    exp = Experiment(Boolean('parity', n=4, k=2, test=8), MLP(width=8), AdamW(), loss=Hinge(),
                     steps=20, seeds=2, batch=8, keep=4)
    return fit(exp, tmp_path_factory.mktemp('store'))


def test_plots(run):
    assert survivors(run.plot, 50) == 0


def test_walsh(run):
    powers = walsh_power(run)
    assert survivors(lambda: plot_walsh(powers), 5) == 0


def test_reports(run, tmp_path):
    assert survivors(lambda: report(run, tmp_path), 3) == 0

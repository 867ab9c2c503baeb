"A store that came from somebody else: to open it runs nothing that came with it."
import importlib
import json
import sys

import pytest
from grok_nb.all import fit, runs
from grok_nb.lab.jobs import Job, Spare, write_job, jobs, start
from grok_nb.lab.page import Laboratory
from grok_nb.lab.parts import Desk, until
from grok_nb.lab.watch import Watch
from grok_nb.tasks.config import Config

CODE = '''
from pathlib import Path
from grok_nb.tasks.config import config
from grok_nb.tasks.modular import ModularArithmetic
(Path(__file__).parent/'ran').touch()

@config
class {}(ModularArithmetic): "A task of somebody's own."
'''


@pytest.fixture
def module(tmp_path, monkeypatch):
    "Write a module with a task into the working folder, which is on the path; it notes when it runs"
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    def write(name, task):
        (tmp_path/f'{name}.py').write_text(CODE.format(task))
        return tmp_path/'ran'
    yield write
    for name in ('beside', 'ours'):
        sys.modules.pop(name, None)
        for k in [k for k in Config._known if k.startswith(f'{name}:')]: del Config._known[k]


def foreign(small, store, kind='run', **about):
    "A job whose task is a class of a module that lies beside the runs"
    job = write_job([small], store, kind, 'a gift', about)
    d = json.loads((job.folder/'job.json').read_text())
    d['experiments'][0]['task']['type'] = 'beside:Trap'
    (job.folder/'job.json').write_text(json.dumps(d))
    return Job(job.folder)


def ended(job): return until(lambda: not job.status().alive and job.status(), lambda: f'{job.status()} {job.log()}')


def test_opening_a_store_runs_nothing_of_it(small, module, tmp_path):
    ran = module('beside', 'Trap')
    store = tmp_path/'store'
    sweep = foreign(small, store, 'sweep', x='task.p', xs=[13], y='model.width', ys=[16])
    run = foreign(small, store)
    page = Laboratory(store)
    page.tick()
    page.show('look')
    assert not ran.exists() and page.wrong == ''
    watch = page.panels['run']
    assert watch.job.id == run.id and 'import beside, if you trust it' in watch.line.value
    assert not watch.stop.disabled                                     # it might be starting elsewhere
    with pytest.raises(ValueError, match='import beside'): list(sweep.experiments)
    page.close()
    assert 'beside' not in sys.modules


def test_a_worker_imports_only_what_its_page_has(small, module, tmp_path):
    ran = module('beside', 'Trap')
    job = foreign(small, tmp_path/'store')
    (job.folder/'beat.json').write_text('{"state": "stopped"}')
    job.go_on()
    assert ended(job).state == 'failed' and 'import beside, if you trust it' in job.status().message
    assert not ran.exists()


def test_a_class_of_your_own_is_trained_by_a_worker_and_by_a_spare(small, module, tmp_path):
    module('ours', 'Mine')
    mine = importlib.import_module('ours').Mine(p=13, train_frac=.6)
    exp, store, told = small.but(task=mine, steps=20), tmp_path/'store', []
    assert ended(start([exp], store)).state == 'finished'
    spare = Spare(store)
    spare.expect(exp, told.append)
    until(lambda: told, 'what it will take')
    assert told[0]['error'] == ''
    again = start([exp.but(steps=30)], store, spare=spare)
    assert ended(again).state == 'finished' and again.log() == ''
    assert Watch(Desk(store)).exp == exp.but(steps=30)


def test_a_job_of_another_store_is_none_of_this_one(small, tmp_path):
    job = write_job([small], tmp_path/'there')
    (tmp_path/'here').mkdir()
    (tmp_path/'there/.lab').rename(tmp_path/'here/.lab')
    assert jobs(tmp_path/'here') == [] and 'Nothing has been trained' in Watch(Desk(tmp_path/'here')).line.value
    with pytest.raises(RuntimeError, match='is a job of another store'): Job(tmp_path/'here/.lab'/job.id)


def test_runs_of_a_class_that_is_not_here_are_left_out_with_one_sentence(small, module, tmp_path):
    module('beside', 'Trap')
    here, task = fit(small, tmp_path/'store', device='cpu'), importlib.import_module('beside').Trap(p=small.task.p)
    for width in (8, 9, 10): fit(small.but(task=task, width=width), tmp_path/'store', device='cpu')
    sys.modules.pop('beside')
    for k in [k for k in Config._known if k.startswith('beside:')]: del Config._known[k]
    with pytest.warns(UserWarning) as said: assert runs(tmp_path/'store').id.tolist() == [here.id]
    assert len(said) == 1 and 'beside' in str(said[0].message) and str(said[0].message).endswith('; and 2 more of the same classes')

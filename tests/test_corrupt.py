"A damaged or foreign file in the store is named, and left as it is."
import shutil

import pytest
from grok_nb.all import Store, StoreError, fit, open_run


def cut(b): return b[:len(b)//2]
def edited(b): return b[:len(b)//2] + bytes([b[len(b)//2] ^ 1]) + b[len(b)//2 + 1:]
def longer(b): return b + b'\n '
def empty(b): return b''
def gone(b): return None


def use_everything(exp, store):
    "Ask for the run and read all of it."
    run = fit(exp, store, device='cpu')
    run.history, [run.at(s) for s in run.checkpoints]


@pytest.mark.parametrize('how', [cut, edited, longer, empty, gone])
@pytest.mark.parametrize('name', ['config.json', 'manifest.json', 'history.parquet', 'bank.0.safetensors', 'bank.60.safetensors'])
def test_finished_run(small, reference, tmp_path, picture, name, how):
    folder = shutil.copytree(reference.path, tmp_path/small.id)
    bad = how((folder/name).read_bytes())
    if bad is None: (folder/name).unlink()
    else: (folder/name).write_bytes(bad)
    if name.endswith('.json') and how is longer: return use_everything(small, tmp_path)        # white space changes no meaning
    before = picture(folder, ('.lock',))
    with pytest.raises(StoreError) as e: use_everything(small, tmp_path)
    assert name in str(e.value) and 'left as it is' in str(e.value)
    assert picture(folder, ('.lock',)) == before


@pytest.mark.parametrize('how', [cut, edited, longer, empty, gone])
def test_unfinished_run(small, tmp_path, picture, how, monkeypatch):
    steps = iter(range(10**6))
    from grok_nb.train.pool import Pool
    real = Pool.step
    def fails(*a):
        if next(steps) == 50: raise MemoryError('as if the machine had had enough')
        real(*a)
    monkeypatch.setattr(Pool, 'step', fails)
    with pytest.raises(MemoryError): fit(small, tmp_path, device='cpu', snapshot=0)
    monkeypatch.setattr(Pool, 'step', real)

    folder = tmp_path/small.id
    resume, = folder.glob('resume.*')
    good = resume.read_bytes()
    bad = how(good)
    if bad is None: resume.unlink()
    else: resume.write_bytes(bad)
    before = picture(folder, ('.lock',))
    with pytest.raises(StoreError, match='resume'): fit(small, tmp_path, device='cpu')
    assert picture(folder, ('.lock',)) == before

    resume.write_bytes(good)                                                                # mended, it goes on
    assert not open_run(small, tmp_path).finished
    assert fit(small, tmp_path, device='cpu').finished


def test_a_folder_of_somebody_else(small, tmp_path, picture):
    folder = tmp_path/small.id
    folder.mkdir()
    (folder/'history.parquet').write_text('precious')
    with pytest.raises(StoreError, match='history.parquet'): fit(small, tmp_path, device='cpu')
    assert picture(folder, ('.lock',)) == {'history.parquet': b'precious'}


def test_a_renamed_run_is_not_another_experiment(small, tmp_path):
    run = fit(small, tmp_path, device='cpu')
    run.path.rename(tmp_path/small.but(steps=50, keep=0).id)
    with pytest.raises(StoreError, match='was changed'): fit(small.but(steps=50, keep=0), tmp_path, device='cpu')


def test_other_files_of_the_user_survive(small, tmp_path):
    folder = Store(tmp_path).create(small)
    (folder.path/'notes.md').write_text('mine')
    fit(small, tmp_path, device='cpu', snapshot=0)
    assert (folder.path/'notes.md').read_text() == 'mine'

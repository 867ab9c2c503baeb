"A damaged or foreign file in the store is named, and left as it is."
import shutil

import pytest
from conftest import segment_of, with_other_words
from grok_nb.all import Store, StoreError, fit, open_run
from grok_nb.train.events import listening
from grok_nb.train.store import Segment
from same import same


def cut(b): return b[:len(b)//2]
def edited(b): return b[:len(b)//2] + bytes([b[len(b)//2] ^ 1]) + b[len(b)//2 + 1:]
def longer(b): return b + b'\n '
def empty(b): return b''
def gone(b): return None


def damage(file, how):
    "Change a file; what it was."
    good = file.read_bytes()
    bad = how(good)
    if bad is None: file.unlink()
    else: file.write_bytes(bad)
    return good


def use_everything(exp, store):
    "Ask for the run, read all of it, and go on from its end."
    run = fit(exp, store, device='cpu')
    run.history, [run.at(s) for s in run.checkpoints], open_run(exp.id, store)
    fit(exp.but(steps=exp.steps + 1), store, device='cpu')


@pytest.mark.parametrize('how', [cut, edited, longer, empty, gone])
@pytest.mark.parametrize('kind', ['manifest', 'experiments', 'runs', 'replicas', 'history', 'weights', 'state'])
def test_finished_run(small, reference, tmp_path, picture, kind, how):
    shutil.copytree(reference.store.path, tmp_path/'store')
    folder = segment_of(tmp_path/'store', small)
    name = 'manifest.json' if kind == 'manifest' else Segment(folder).files(kind)[-1]
    damage(folder/name, how)
    if kind == 'manifest' and how is longer: return use_everything(small, tmp_path/'store')        # white space changes no meaning
    before = picture(tmp_path, ('.lock',))
    with pytest.raises(StoreError) as e: use_everything(small, tmp_path/'store')
    assert name in str(e.value) and 'left as it is' in str(e.value)
    assert picture(tmp_path, ('.lock',)) == before


@pytest.mark.parametrize('how', [cut, edited, longer, empty, gone])
def test_unfinished_run(small, reference, tmp_path, picture, how):
    with listening(ask=lambda e, step: 'stop' if step == 50 else ''): fit(small, tmp_path, device='cpu')
    slots, = segment_of(tmp_path).glob('slots.*')
    good = damage(slots, how)
    before = picture(tmp_path, ('.lock',))
    with pytest.raises(StoreError, match='slots'): fit(small, tmp_path, device='cpu')
    assert picture(tmp_path, ('.lock',)) == before

    slots.write_bytes(good)                                                                # mended, it goes on
    assert not open_run(small, tmp_path).finished
    same(fit(small, tmp_path, device='cpu'), reference)


@pytest.mark.parametrize('name', ['history.parquet', 'notes.md', 'weights.1.safetensors'])
def test_a_folder_of_somebody_else(small, tmp_path, name):
    folders = tmp_path/small.id, tmp_path/'segments'/f'{small.id}.{"0"*12}', tmp_path/'segments/thesis'
    for f in folders: f.mkdir(parents=True); (f/name).write_text('precious')
    (tmp_path/'segments/README').write_text('precious')
    try: fit(small, tmp_path, device='cpu')
    except StoreError as e: assert small.id in str(e) and name.startswith('weights')       # it may be a part of the run
    Store(tmp_path).fold(2)
    assert [(f/name).read_text() for f in folders] + [(tmp_path/'segments/README').read_text()] == ['precious']*4


def test_a_renamed_segment_is_not_another_experiment(small, tmp_path):
    fit(small, tmp_path, device='cpu')
    other = small.but(width=9)
    folder = segment_of(tmp_path)
    folder.rename(folder.with_name(f'{other.id}.{"0"*12}'))
    with pytest.raises(StoreError, match='there is no run'): open_run(other, tmp_path)
    assert fit(small, tmp_path, device='cpu').cached and not fit(other, tmp_path, device='cpu').cached


def test_a_table_that_describes_another_experiment_is_said(small, tmp_path):
    fit(small, tmp_path, device='cpu')
    with_other_words(segment_of(tmp_path), '"width": 16', '"width": 17')
    with pytest.raises(StoreError, match=f'{small.id} was changed: it describes {small.but(width=17).id}'): open_run(small.id, tmp_path)


def test_other_files_of_the_user_survive(small, tmp_path):
    store = Store(tmp_path)
    with listening(ask=lambda e, step: 'stop' if step == 50 else ''): fit(small, tmp_path, device='cpu')
    note = segment_of(tmp_path)/'notes.md'
    note.write_text('mine')
    fit(small, tmp_path, device='cpu', commit_every=0)
    store.drop_states()
    store.fold(2)
    with pytest.raises(StoreError, match='notes.md'): store.remove(small.id)
    assert note.read_text() == 'mine' and open_run(small, tmp_path).finished

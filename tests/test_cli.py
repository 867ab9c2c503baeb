"The command line where something is wrong: every mistake gets one sentence and an exit code, never a traceback."
import errno
import io
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
from configparser import ConfigParser
from pathlib import Path

import pytest
from waiting import LIMIT, ended, started, until
from grok_nb.lab.cli import _try_store, main

ROOT = Path(__file__).resolve().parent.parent
posix = pytest.mark.skipif(os.name == 'nt', reason='needs signals, pipes and devices of POSIX')


@pytest.fixture
def tell(tmp_path, monkeypatch):
    "A function from words to exit code, standard output as bytes and standard error"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv('GROK_NB_STORE', str(tmp_path/'store'))
    def run(*words):
        out, err = io.TextIOWrapper(io.BytesIO(), encoding='utf-8'), io.StringIO()
        with monkeypatch.context() as m:
            m.setattr(sys, 'stdout', out)
            m.setattr(sys, 'stderr', err)
            with pytest.raises(SystemExit) as e: main(list(words))
        return e.value.code, out.buffer.getvalue(), err.getvalue()
    return run


@pytest.fixture
def refused(tell):
    "Check that words are refused in one line, before anything is printed or made, which holds certain texts"
    def check(words, *says):
        code, out, err = tell(*words)
        assert code == 2 and not out and err.startswith('grok-nb: ') and len(err.splitlines()) == 1, err
        assert all(s in err for s in says), err
        assert not Path('store').exists()
    return check


# --- what is given -------------------------------------------------------------------------------------------------

def test_a_module_that_cannot_be_imported(refused, monkeypatch):
    monkeypatch.syspath_prepend(os.getcwd())
    for name, text in dict(divides='1\n1/0', ends='raise SystemExit(0)', torn='x = (').items(): Path(f'cli_{name}.py').write_text(text)
    why = {'cli.no.such': "No module named 'cli'", 'cli_divides': 'ZeroDivisionError: division by zero, cli_divides.py, line 2',
           'cli_ends': 'SystemExit: 0', 'cli_torn': 'SyntaxError', '': 'Empty module name', '.above': 'TypeError'}
    for name, said in why.items():
        refused(['reproduce', 'edelman:E7.9', '--module', name], f'--module={name!r} is not allowed; --module must be a module', said)
    assert not Path('claims').exists()


def test_nesting_that_python_cannot_follow(refused):
    for depth in (100_000, *range(sys.getrecursionlimit() - 100, sys.getrecursionlimit() + 10, 5)):
        deep = '['*depth + ']'*depth
        says = 'nested less deeply' if depth == 100_000 else 'not allowed'
        refused(['run', 'modular-addition', '--set', f'p={deep}'], says)
    Path('deep.json').write_text(f'{{"steps": {deep}}}'.replace(deep, '['*100_000 + ']'*100_000))
    refused(['run', 'deep.json'], "experiment='deep.json' is not allowed; experiment must be nested less deeply")
    refused(['run', Path('deep.json').read_text()], 'experiment=\'{"steps": [[[', 'nested less deeply')


def test_files_that_are_no_experiment(refused):
    Path('folder.json').mkdir()
    Path('empty.json').touch()
    Path('latin.toml').write_bytes(b'steps = "\xff"')
    for words, says in (('folder.json', 'Is a directory'), ('empty.json', 'is not valid JSON'), ('latin.toml', 'is not valid TOML'),
                        ('a'*300 + '.json', 'File name too long'), ('gone.json', 'a file that exists')):
        refused(['run', words], words[:100], says)          # a long name is shown in part
    refused(['bench', '--json', 'folder.json'], "--json='folder.json' is not allowed", 'Is a directory')
    refused(['bench', '--json', 'empty.json/x'], "--json='empty.json/x' is not allowed; --json must be a file you may write")
    Path('out/claims.json').mkdir(parents=True)
    refused(['reproduce', 'edelman:E7.9', '--out', 'out'], 'claims.json cannot be used (Is a directory)')


def test_numbers_and_words_that_are_not_allowed(refused):
    with socket.socket() as s:
        s.bind(('127.0.0.1', 0))
        s.listen()
        port = s.getsockname()[1]
        refused(['lab', '--port', str(port)], f'--port={port} is not allowed; --port must be a free port between 1 and 65535')
    for words, says in ((['lab', '--port', 'abc'], "'--port': 'abc' is no whole number"), (['lab', '--port', '70000'], '--port=70000'),
                        (['run', 'parity', '--steps', '1e3'], "'--steps': '1e3' is no whole number"),
                        (['run', 'parity', '--set', 'lr=NaN'], 'lr=nan is not allowed; lr must be a finite number'),
                        (['run', 'parity', '--device', 'cpu:x'], "--device='cpu:x' is not allowed; --device must be 'auto'"),
                        (['run', 'parity', '--colour'], 'grok-nb run --help'), (['nosuch'], "No such command 'nosuch'")):
        refused(words, says)


# --- where runs are kept -------------------------------------------------------------------------------------------

@pytest.mark.parametrize('words', (['list'], ['run', 'parity'], ['reproduce', 'edelman:E7.9']), ids=lambda w: w[0])
def test_a_store_that_cannot_be_one(refused, words):
    Path('file').touch()
    for store, why in (('~nosuchuser/x', "there is no user 'nosuchuser'"), ('a'*300, 'File name too long'), ('file', 'Not a directory')):
        refused([*words, '--store', store], f'store={store!r} cannot be used ({why}); the store must be a folder', 'GROK_NB_STORE')


@posix
def test_a_working_folder_that_is_gone(refused, tell, tmp_path, monkeypatch):
    (tmp_path/'gone').mkdir()
    monkeypatch.chdir(tmp_path/'gone')
    (tmp_path/'gone').rmdir()
    refused(['list', '--store', 'here'], "store='here' cannot be used (No such file or directory)")
    refused(['run', 'parity', '--out', 'here'], "--out='here' is not allowed")
    assert tell('list', '--store', str(tmp_path/'there'))[0] == 0


@posix
def test_names_that_are_no_text_are_printed_with_a_backslash(tell):
    code, out, err = tell('list', '--store', 'caf\udce9')
    assert code == 0 and rb'caf\udce9' in out and not err


@posix
def test_the_doctor_leaves_nothing_behind(tmp_path):
    home, temp = tmp_path/'home', tmp_path/'temp'
    for f in (home, temp): f.mkdir()
    env = {k: v for k, v in os.environ.items() if not k.startswith(('XDG_', 'GROK_NB_', 'JUPYTER', 'IPYTHON', 'MPL'))}
    done = subprocess.run([sys.executable, '-m', 'grok_nb', 'doctor'], cwd=home, capture_output=True, text=True, timeout=LIMIT,
                          env=env | dict(HOME=str(home), TMPDIR=str(temp), PYTHONPATH=str(ROOT)))
    assert done.returncode == 0, done.stderr
    assert re.search(rf'^store +{re.escape(str(home))}/.grok_nb, not there yet', done.stdout, re.M), done.stdout
    assert not list(home.rglob('*')) and not [f for f in temp.rglob('*') if 'grok' in f.name]


def test_the_doctor_tries_to_write_where_a_store_is_or_would_be(tmp_path):
    assert 'not there yet' in _try_store(tmp_path/'a/b/c') and not list(tmp_path.iterdir())
    assert _try_store(tmp_path).endswith(f'{tmp_path}, 0 runs, 0.0 MB') and not list(tmp_path.iterdir())
    tmp_path.chmod(0o555)
    if not os.access(tmp_path, os.W_OK):
        with pytest.raises(OSError): _try_store(tmp_path/'a')


# --- streams and signals -------------------------------------------------------------------------------------------

def written_to(fd, monkeypatch, buffered):
    "Exit code and standard error of `list` with a standard output that cannot be written; it closes without an error, as Python does at its end"
    raw = open(fd, 'wb', buffering=-1 if buffered else 0)
    out, err = io.TextIOWrapper(raw, encoding='utf-8', write_through=not buffered), io.StringIO()
    with monkeypatch.context() as m:
        m.setattr(sys, 'stdout', out)
        m.setattr(sys, 'stderr', err)
        with pytest.raises(SystemExit) as e: main(['list'])
    out.close()
    return e.value.code, err.getvalue()


unbuffered = pytest.mark.parametrize('buffered', (True, False))         # False: as with PYTHONUNBUFFERED


@posix
@unbuffered
def test_a_pipe_that_is_closed_is_no_error(tell, monkeypatch, buffered):
    ours, theirs = os.pipe()
    os.close(ours)                                      # as if `head` had seen enough
    assert written_to(theirs, monkeypatch, buffered) == (141, '')


@pytest.mark.skipif(not os.path.exists('/dev/full'), reason='no /dev/full on this machine')
@unbuffered
def test_a_disk_that_is_full_is_told_once(tell, monkeypatch, buffered):
    code, said = written_to(os.open('/dev/full', os.O_WRONLY), monkeypatch, buffered)
    assert code == 2 and re.fullmatch(r'grok-nb: standard output .*cannot be written \((.*)\)\n', said)[1] == os.strerror(errno.ENOSPC)


def entry_point():
    "Python code that does what the installed `grok-nb` does"
    cfg = ConfigParser(delimiters=['='])
    cfg.read(ROOT/'settings.ini', encoding='utf-8')
    module, name = shlex.split(cfg['DEFAULT']['console_scripts'])[0].partition('=')[2].split(':')
    return f'import sys; from {module} import {name}; sys.exit({name}())'


@posix
@pytest.mark.parametrize('words', (['-m', 'grok_nb'], ['-c', entry_point()]), ids=('module', 'script'))
def test_ctrl_c_during_the_imports(tmp_path, words):
    # In place of torch: a module that takes for ever and, as some do, goes on after an exception
    (tmp_path/'torch.py').write_text('import pathlib, time\npathlib.Path(__file__).with_suffix(".begun").touch()\n'
                                     'try: time.sleep(600)\nexcept BaseException as e: print("caught", e)\n')
    env = os.environ | dict(PYTHONPATH=os.pathsep.join([str(tmp_path), str(ROOT)]))
    with started(sys.executable, *words, 'list', env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as p:
        until(lambda: (tmp_path/'torch.begun').exists() or p.poll() is not None, 'the import of torch has begun')
        p.send_signal(signal.SIGINT)
        assert (ended(p, 'grok-nb list')[0], p.returncode) == ('', 130)


def test_a_command_that_is_interrupted(tell, monkeypatch):
    import grok_nb.lab.cli as cli
    def interrupt(): raise KeyboardInterrupt
    monkeypatch.setattr(cli, '_load_papers', interrupt)
    assert tell('list')[::2] == (130, '')

"Ctrl-C: in a real Jupyter kernel and in a terminal."
import os
import signal
import subprocess
import sys

import pytest
from grok_nb.all import open_run, preset, runs
from jupyter_client.manager import start_new_kernel
from waiting import LIMIT, ended, started, until

exp = preset('modular-addition').but(p=13, width=16, steps=10**7, keep=0, seeds=2)
start = '''
from grok_nb.all import *
exp = preset('modular-addition').but(p=13, width=16, steps=10**7, keep=0, seeds=2)
'''
# The command, which leaves a file as soon as a step was taken
command = '''
import sys
from pathlib import Path
from grok_nb.lab.cli import main
from grok_nb.train.events import listening
with listening(lambda e: e.step and Path(sys.argv[-1]).touch()): main(sys.argv[1:-1])
'''


def ask(client, code):
    "The value of a cell, or its error."
    reply = client.execute_interactive(code, user_expressions=dict(v='_v'), allow_stdin=False, timeout=LIMIT, output_hook=lambda m: None)
    assert reply['content']['status'] == 'ok', reply['content']
    return reply['content']['user_expressions']['v']['data']['text/plain']


def committed(store):
    "Has a run put away some steps?"
    return runs(store).step.gt(0).any()


def test_ctrl_c_in_a_notebook_returns_the_partial_run(tmp_path, monkeypatch):
    monkeypatch.setenv('GROK_NB_STORE', str(tmp_path))
    manager, client = start_new_kernel(startup_timeout=LIMIT, kernel_name='python3')
    try:
        ask(client, start + '_v = 1')
        sent = client.execute('run = fit(exp, commit_every=0); _v = run')
        until(lambda: committed(tmp_path), 'the kernel commits a step')
        manager.interrupt_kernel()
        while client.get_shell_msg(timeout=LIMIT)['parent_header'].get('msg_id') != sent: pass
        assert ask(client, '_v = run.finished') == 'False'
        step = int(ask(client, '_v = run.step'))
        assert step > 0
        assert int(ask(client, '_v = int(run.history.step.max())')) <= step
        assert ask(client, '_v = len(run.timeline())') == '2'
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


@pytest.mark.skipif(os.name == 'nt', reason='needs SIGINT')
def test_ctrl_c_in_a_terminal_keeps_what_was_done(tmp_path):
    words = ['run', 'modular-addition', '--set', 'p=13', '--set', 'width=16', '--set', 'keep=0', '--steps', '10000000', '--seeds', '2', '--store', str(tmp_path)]
    with started(sys.executable, '-c', command, *words, tmp_path/'stepped', stdout=subprocess.PIPE, stderr=subprocess.PIPE) as p:
        until(lambda: (tmp_path/'stepped').exists() or p.poll() is not None, 'the command takes a step')
        p.send_signal(signal.SIGINT)
        out, err = ended(p, 'the command, after Ctrl-C,')
    assert p.returncode == 130 and 'Traceback' not in err, err
    assert 'Stopped at step' in err and 'memorised' in out
    assert 0 < open_run(exp, tmp_path).step < 10**7

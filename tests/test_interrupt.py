"Ctrl-C: in a real Jupyter kernel and in a terminal."
import os
import signal
import subprocess
import sys
import time

import pytest
from grok_nb.all import open_run, preset
from jupyter_client.manager import start_new_kernel

start = '''
from grok_nb.all import *
exp = preset('modular-addition').but(p=13, width=16, steps=10**7, keep=0, seeds=2)
'''


def ask(client, code, timeout=60):
    "The value of a cell, or its error."
    reply = client.execute_interactive(code, user_expressions=dict(v='_v'), allow_stdin=False, timeout=timeout, output_hook=lambda m: None)
    assert reply['content']['status'] == 'ok', reply['content']
    return reply['content']['user_expressions']['v']['data']['text/plain']


def test_ctrl_c_in_a_notebook_returns_the_partial_run(tmp_path, monkeypatch):
    monkeypatch.setenv('GROK_NB_STORE', str(tmp_path))
    manager, client = start_new_kernel(kernel_name='python3')
    try:
        ask(client, start + '_v = 1')
        sent = client.execute('run = fit(exp); _v = run')
        deadline = time.monotonic() + 60
        while not list(tmp_path.rglob('manifest.json')): assert time.monotonic() < deadline and not time.sleep(.1)
        time.sleep(.5)
        manager.interrupt_kernel()
        while client.get_shell_msg(timeout=60)['parent_header'].get('msg_id') != sent: pass
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
    command = [sys.executable, '-c', 'from grok_nb.lab.cli import main; main()', *words]
    p = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    while not list(tmp_path.rglob('manifest.json')): assert time.monotonic() < deadline and not time.sleep(.1)
    time.sleep(.5)
    p.send_signal(signal.SIGINT)
    out, err = p.communicate(timeout=60)
    assert p.returncode == 130 and 'Traceback' not in err
    assert 'Stopped at step' in err and 'memorised' in out
    exp = preset('modular-addition').but(p=13, width=16, steps=10**7, keep=0, seeds=2)
    assert 0 < open_run(exp, tmp_path).step < 10**7

"""Run a command while four endless loops want the processor too: `python dev/busy.py COMMAND ...`

The tests must hold on a machine that is busy with other things. The loops have the usual priority and end with the command,
also when this process is killed."""
import subprocess
import sys

LOOP = 'import os\nme = os.getppid()\nwhile os.getppid() == me:\n    for _ in range(10**6): pass'

if __name__ == '__main__':
    loops = [subprocess.Popen([sys.executable, '-S', '-c', LOOP], start_new_session=True) for _ in range(4)]   # Linux shares by session
    try: sys.exit(subprocess.call(sys.argv[1:]))
    finally:
        for p in loops: p.kill()

"""Which notebooks have passed at the cpu scale, when, and at which commit: nbs/papers/claims/passed.json, for the scoreboard

`make test-cpu` and `make run-nbs` write it, also side by side."""
import json
import os
import subprocess
from datetime import date
from pathlib import Path

from filelock import FileLock

ROOT = Path(__file__).resolve().parent.parent
PASSED = ROOT/'nbs/papers/claims/passed.json'
SCALE = os.environ.get('GROK_NB_SCALE') or 'cpu'
SOURCES = ['nbs', 'grok_nb', 'index.ipynb', ':!nbs/papers/claims', ':!nbs/images']


def notebooks() -> list:
    "All notebooks, the tour first; folders and files that start with `_` or `.` are private"
    found = [f for f in sorted((ROOT/'nbs').rglob('*.ipynb')) if not any(part[0] in '_.' for part in f.relative_to(ROOT/'nbs').parts)]
    return sorted(found, key=lambda f: f.name != 'index.ipynb')


def name(f) -> str:
    "A notebook as one would type it; the tour lies at the top, and is a link in the folder of notebooks"
    f = Path(f).resolve()
    return f.relative_to(ROOT).as_posix() if f.is_relative_to(ROOT) else str(f)


def git(*words) -> str:
    "What git says; nothing where there is no repository"
    try: return subprocess.run(['git', *words], cwd=ROOT, capture_output=True, text=True).stdout
    except OSError: return ''


def code(text: str) -> list:
    "What of a notebook is run; outputs and prose are not"
    return [''.join(c['source']) for c in json.loads(text)['cells'] if c['cell_type'] == 'code']


def differs(f: str) -> bool:
    "Would this file, which differs from the one checked out, do something else?"
    if not f.endswith('.ipynb'): return True
    try: return code((ROOT/f).read_text(encoding='utf-8')) != code(git('show', f'HEAD:./{f}'))
    except (OSError, ValueError): return True           # new, gone, or no notebook any more


def commit() -> str:
    "The commit that is checked out, and whether its code was changed since; nothing where there is none, or at another scale"
    if SCALE != 'cpu': return ''
    now = git('rev-parse', '--short', 'HEAD').strip()
    changed = git('diff', '--relative', '--name-only', '-z', 'HEAD', '--', *SOURCES) + git('ls-files', '--others', '--exclude-standard', '-z', '--', *SOURCES)
    return now + ' with changes'*any(differs(f) for f in changed.split('\0') if f)


def record(f, at: str):
    "Write down that a notebook has passed at a commit; the others keep their line, and what is no notebook any more goes"
    if not at: return
    there = set(map(name, notebooks()))
    (ROOT/'.test').mkdir(exist_ok=True)
    with FileLock(ROOT/'.test/passed.lock'):
        known = json.loads(PASSED.read_text(encoding='utf-8')) if PASSED.exists() else {}
        known[name(f)] = dict(date=date.today().isoformat(), commit=at)
        PASSED.parent.mkdir(parents=True, exist_ok=True)
        new = PASSED.with_suffix('.new')
        new.write_text(json.dumps({k: v for k, v in sorted(known.items()) if k in there}, indent=1) + '\n', encoding='utf-8')
        new.replace(PASSED)

"README.md is the tour, and everything it points to is in the repository."
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def links():
    "Relative addresses in README.md, outside code"
    text = re.sub(r'^ *```.*?^ *```', '', (ROOT/'README.md').read_text(encoding='utf-8'), flags=re.S | re.M)
    found = re.findall(r'\]\(([^)\s]+)\)', text) + re.findall(r'(?:src|href)="([^"]+)"', text)
    return [u for u in found if not re.match(r'https?:|mailto:|#', u)]


def test_readme_is_the_tour():
    done = subprocess.run([sys.executable, str(ROOT/'dev/docs.py'), '--readme', '--check'], text=True, capture_output=True)
    assert done.returncode == 0, done.stderr


def test_links_and_images_exist():
    assert [u for u in links() if not (ROOT/u.partition('#')[0]).exists()] == []


def test_images_are_small():
    assert [f.name for f in (ROOT/'nbs/images').glob('*.png') if f.stat().st_size > 100_000] == []


def test_check_names_the_command_that_mends_it(tmp_path):
    "On a copy whose README is not what the tour gives"
    for name in ('dev/docs.py', 'settings.ini', 'index.ipynb', 'grok_nb/_modidx.py'):
        (tmp_path/name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT/name, tmp_path/name)
    (tmp_path/'README.md').write_text('old')
    done = subprocess.run([sys.executable, str(tmp_path/'dev/docs.py'), '--readme', '--check'], text=True, capture_output=True)
    assert done.returncode == 1 and 'README.md' in done.stderr and 'python dev/docs.py --readme' in done.stderr

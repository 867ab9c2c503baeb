#!/bin/sh
# Writes constraints.txt anew from settings.ini: every package that grok_nb and its development tools need, directly
# or not, at one version for each Python. Pins that still fit are kept; UPGRADE=1 moves them all to the newest.
# torch stays where it is: change its line by hand, after making sure that there is a CPU build of that version.
set -eu
CDPATH= cd -- "$(dirname -- "$0")/.."
py=.venv/bin/python
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
trap 'exit 130' INT; trap 'exit 143' TERM

"$py" -m uv --version >/dev/null 2>&1 || "$py" -m pip install -q uv
"$py" - > "$tmp/in.txt" <<'PY'
import shlex
from configparser import ConfigParser
cfg = ConfigParser(delimiters=['='])
cfg.read('settings.ini', encoding='utf-8')
cfg = cfg['DEFAULT']
print('\n'.join(shlex.split(f"{cfg['requirements']} {cfg['dev_requirements']} {cfg['lab_requirements']} {cfg['cluster_requirements']} {cfg['search_requirements']}") + ['pip', 'setuptools', 'wheel']))
PY
grep '^torch==' constraints.txt > "$tmp/torch.txt"
cp constraints.txt "$tmp/out.txt"

# --universal: one answer for all systems and all Pythons from min_python on, with markers where they differ.
oldest=$(sed -n 's/^min_python *= *//p' settings.ini)
"$py" -m uv pip compile --quiet --universal --python-version "$oldest" ${UPGRADE:+--upgrade} \
    --no-header --no-annotate --no-emit-index-url --constraint "$tmp/torch.txt" -o "$tmp/out.txt" "$tmp/in.txt"

{
    cat <<'HEAD'
# The exact versions that grok_nb is developed and tested with, for every supported Python.
# `make setup` hands this file to pip. A constraint asks for nothing by itself: what is installed stands in settings.ini.
# Written by `make constraints`; only the torch line is edited by hand. The CUDA libraries of a GPU build are
# left out, since each torch names its own.

HEAD
    grep -E '^[A-Za-z0-9]' "$tmp/out.txt" | grep -vE '^(nvidia|cuda|triton)(-|==)' | sed 's/python_full_version/python_version/g; s/ ; /; /' > "$tmp/pins.txt"
    # Only a patch level needs the full version; everything else reads better with the short one.
    sed -E "s/python_version ([<>=!]=?) '([0-9]+\.[0-9]+\.[0-9]+)'/python_full_version \1 '\2'/g; s/python_version == '([0-9]+\.[0-9]+)\.\*'/python_version == '\1'/g" "$tmp/pins.txt"
} > "$tmp/constraints.txt"
cp "$tmp/constraints.txt" constraints.txt
echo "constraints.txt: $(grep -c == constraints.txt) pins"

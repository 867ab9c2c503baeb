#!/bin/sh
# Makes .venv, or brings it up to date. Call it as often as you like: when nothing has changed since the last
# complete set-up it returns at once. `make setup` and every other target that needs Python call it.
#
#   PYTHON=python3.12      the interpreter to build on; otherwise the first suitable one on the PATH
#   TORCH=auto|cpu|cuda    which build of torch; auto keeps one that is there, then looks for a GPU, then takes the CPU build
#   TORCH_INDEX=URL        the index that has torch's CPU wheels
#   SETUP_TRACE=1          show everything pip says; otherwise it goes to .venv/pip.log
#   SETUP_ASKED=1          say what is missing even where there is nothing to do, as `make setup` itself does
set -eu
CDPATH= cd -- "$(dirname -- "$0")/.."

PYTHON=${PYTHON:-} TORCH=${TORCH:-auto} TORCH_INDEX=${TORCH_INDEX:-https://download.pytorch.org/whl/cpu}
oldest=$(sed -n 's/^min_python *= *//p' settings.ini)
newest=3.14                                     # the last Python that the pinned torch has wheels for
torch=$(sed -n 's/^torch==\([^ ;]*\).*/\1/p' constraints.txt)
vpy=.venv/bin/python

say() { printf 'grok_nb: %s\n' "$*"; }
die() { say "$*" >&2; exit 1; }
say_of_browser() {
    { command -v chromium || command -v chromium-browser || command -v google-chrome; } >/dev/null 2>&1 ||
        say 'no Chromium on this machine: `make test` will skip the tests that use the laboratory in a browser (on Debian or Ubuntu: apt install chromium)'
}
case $TORCH in auto|cpu|cuda) ;; *) die "TORCH=$TORCH is not known; use TORCH=auto, TORCH=cpu or TORCH=cuda" ;; esac

# Settings of the caller's that would send packages somewhere else than .venv.
unset PYTHONPATH PYTHONHOME PIP_TARGET PIP_PREFIX PIP_USER
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1

# Two makes at once would unpack over each other.
if command -v flock >/dev/null 2>&1; then exec 9<settings.ini; flock 9; fi

# --- what is there ---------------------------------------------------------------------------------------------

version() { "$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null; }
suitable() {  # suitable VERSION: is it between oldest and newest?
    case $1 in 3.*) ;; *) return 1 ;; esac
    [ "${1#3.}" -ge "${oldest#3.}" ] && [ "${1#3.}" -le "${newest#3.}" ]
}
# The stamp holds the content of what decides the set-up, and the place: a venv does not survive being moved.
stamp() { cat settings.ini setup.py constraints.txt dev/setup.sh | cksum; pwd -P; }
torch_in_venv() { "$vpy" -I -c 'import importlib.metadata as m; print(m.version("torch"))' 2>/dev/null || :; }
right_torch() {  # is the torch in .venv (version $1) the pinned one, in the build that was asked for?
    case $1 in "$torch"|"$torch"+*) ;; *) return 1 ;; esac
    [ "$(uname -s)" = Linux ] || return 0       # elsewhere there is only one build
    case $TORCH:$1 in cpu:*+cpu|auto:*) ;; cpu:*|cuda:*+cpu) return 1 ;; esac
}

asked=
if [ -n "$PYTHON" ]; then
    asked=$(version "$PYTHON") || die "PYTHON=$PYTHON does not run; name a Python $oldest to $newest"
    suitable "$asked" || die "needs Python $oldest to $newest, but $PYTHON is $asked"
fi

if [ -e .venv ]; then
    have=$(version "$vpy") || have=none
    if [ -e .venv/.unpacking ]; then why='the last set-up was interrupted'
    elif [ -e .venv/.ready ] && [ "$(sed -n 2p .venv/.ready)" != "$(pwd -P)" ]; then why='the folder was moved'
    elif ! suitable "$have"; then why="its Python is $have"
    elif [ -n "$asked" ] && [ "$have" != "$asked" ]; then why="it has Python $have and $asked was asked for"
    elif ! "$vpy" -I -m pip --version >/dev/null 2>&1; then why='it has no pip'
    else why=
    fi
    if [ -n "$why" ]; then say "making .venv again: $why"; rm -rf .venv; fi
fi

if [ -e .venv/.ready ] && [ "$(cat .venv/.ready)" = "$(stamp)" ] && right_torch "$(torch_in_venv)"; then
    [ -z "${SETUP_ASKED:-}" ] || say_of_browser
    exit 0
fi

# --- the interpreter -------------------------------------------------------------------------------------------

if [ ! -e .venv ]; then
    found= no_venv= other=
    set -- python3 python3.14 python3.13 python3.12 python3.11 python3.10 python
    [ -z "$PYTHON" ] || set -- "$PYTHON"
    for p in "$@"; do
        v=$(version "$p") || continue
        if ! suitable "$v"; then other="$other, $p is $v"; continue; fi
        if "$p" -c 'import ensurepip, venv' 2>/dev/null; then found=$p; break; fi
        no_venv=${no_venv:-$v}
    done
    [ -z "$found" ] && [ -n "$no_venv" ] && die "Python $no_venv cannot make virtual environments here; on Debian or Ubuntu: apt install python$no_venv-venv"
    [ -n "$found" ] || die "needs Python $oldest to $newest on the PATH${other:+, but ${other#, }}; install one, or name it: PYTHON=/path/to/python make setup"
    say "making .venv with Python $(version "$found")"
    "$found" -m venv .venv || { rm -rf .venv; die "$found could not make .venv; its message is above"; }
fi

# --- packages --------------------------------------------------------------------------------------------------

rm -f .venv/.ready
log=.venv/pip.log
# A marker stands while pip unpacks: if it is found later, pip was killed half-way and .venv cannot be trusted.
# When pip itself gives up (no network, no such version) nothing is half-unpacked, so the marker goes.
# --no-compile: Python compiles what is imported when it is imported; compiling all of it is half of the set-up.
trap 'exit 130' INT; trap 'exit 143' TERM
install() {
    : > .venv/.unpacking
    : > "$log"
    rc=0
    if [ -n "${SETUP_TRACE:-}" ]; then "$vpy" -I -m pip install --no-compile -c constraints.txt "$@" || rc=$?
    else "$vpy" -I -m pip install -q --no-compile -c constraints.txt "$@" >"$log" 2>&1 || rc=$?
    fi
    case $rc in 0|1|2) rm -f .venv/.unpacking ;; esac
    return $rc
}
# Three tries of 15 seconds: a slow network has time to answer, and of one that is dead we know within a minute.
patience="--retries ${PIP_RETRIES:-2} --timeout ${PIP_DEFAULT_TIMEOUT:-${PIP_TIMEOUT:-15}}"
unreachable() { grep -qiE 'failed to establish|name resolution|network is unreachable|connection (refused|broken|reset)|max retries|timed out|proxyerror|sslerror' "$log"; }
fail() {  # fail WHAT: why it could not be installed, in a sentence where it is one of the usual reasons
    words="pip's words are in $log"; [ -z "${SETUP_TRACE:-}" ] || words="pip's words are above"
    if unreachable; then
        die "$1 could not be installed: no package index could be reached. Set-up needs the network once (PIP_INDEX_URL or PIP_FIND_LINKS name another source); $words"
    elif grep -qiE 'no space left|disk quota' "$log"; then
        die "$1 could not be installed: the disk is full (.venv takes about 2 GB); $words"
    fi
    grep -iE '^ *(error|fatal)' "$log" | tail -n 5 >&2 || :
    die "$1 could not be installed; $words. The same command goes on from here"
}

install $patience pip setuptools wheel || fail 'the pinned pip'

now=$(torch_in_venv)
if ! right_torch "$now"; then
    build=$TORCH
    if [ "$(uname -s)" != Linux ]; then build=plain
    elif [ "$build" = auto ]; then
        case $now in
            *+cpu) build=cpu ;;
            *) if nvidia-smi >/dev/null 2>&1; then build=cuda; else build=cpu; fi ;;
        esac
    fi
    # Only torch itself is installed here; what it needs comes with everything else below, from pip's usual source.
    # --force-reinstall, because pip takes "2.13.0+cpu" for "2.13.0" and would leave the other build where it is.
    alone='--no-deps --force-reinstall'
    if [ "$build" = cpu ]; then
        say "installing torch $torch, CPU build (about 200 MB)"
        if   install $alone $patience "torch==$torch+cpu"; then :
        elif install $alone $patience --index-url "$TORCH_INDEX" "torch==$torch+cpu"; then :
        else
            why="no CPU build of torch $torch found for this machine"
            if unreachable; then why="the index of torch's CPU builds could not be reached"; fi
            [ "$TORCH" != cpu ] || die "$why ($log has pip's words); TORCH_INDEX=URL names another index, TORCH=auto takes what there is"
            say "$why; taking the standard one (on Linux with CUDA: several GB)"
            build=plain
        fi
    fi
    case $build in
        cuda)   # three equal signs: exactly this version and no "+cpu"
            say "installing torch $torch, CUDA build (several GB)"
            install $alone "torch===$torch" || fail torch ;;
        plain)
            say "installing torch $torch"
            install $alone "torch==$torch" || fail torch ;;
    esac
fi

if "$vpy" -I -m pip show -q grok-nb 2>/dev/null; then say 'bringing the other packages up to date'
else say 'installing the other packages (about 300 MB) and grok_nb itself'
fi
# setuptools warns about every editable install; there is nothing to do about it.
export PYTHONWARNINGS=ignore
install --build-constraint constraints.txt -e '.[dev]' || fail 'the other packages'

stamp > .venv/.ready.new
mv .venv/.ready.new .venv/.ready
say 'set-up complete'
say_of_browser

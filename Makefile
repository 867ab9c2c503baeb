# Every command of the project; `make` alone lists them. The first one that needs Python sets up .venv by itself.
#
#   PYTHON=python3.12 make demo    choose the interpreter
#   make demo TORCH=cuda           the GPU build of torch (or TORCH=cpu; by default whatever suits the machine)

SHELL := /bin/sh
.DEFAULT_GOAL := help
# The steps of a target share one core budget and one terminal: always one after the other.
.NOTPARALLEL:

PYTHON ?=
TORCH ?= auto
TORCH_INDEX ?= https://download.pytorch.org/whl/cpu
NB ?=
TESTS ?=
ORDER ?=
THREADS ?= 1
UPGRADE ?=
CLAIMS ?= *
JOBS ?= 2

# Paths are handed on as environment variables, never as targets, so that a checkout may lie under "My Files".
BIN := .venv/bin
unexport PYTHONPATH PYTHONHOME PYTHONDONTWRITEBYTECODE

.PHONY: help setup demo lab bench reproduce test check test-nbs test-py test-kill test-cpu test-busy docs readme run-nbs prepare constraints clean distclean

help: ## List the commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' Makefile

setup: export PYTHON := $(PYTHON)
setup: export TORCH := $(TORCH)
setup: export TORCH_INDEX := $(TORCH_INDEX)
setup: export SETUP_ASKED := $(filter setup,$(MAKECMDGOALS))
setup: ## Make .venv or bring it up to date
	@sh dev/setup.sh

demo: export GROK_NB_STORE ?= $(CURDIR)/.grok_nb
demo: setup ## Train 8 networks until they grok; figure and report in demo/
	@$(BIN)/grok-nb demo --out demo

lab: export GROK_NB_STORE ?= $(CURDIR)/.grok_nb
lab: setup ## Open the laboratory in JupyterLab (`.venv/bin/grok-nb lab --app`: as an app)
	@$(BIN)/grok-nb lab

bench: setup ## Ratios of CPU time against the usual loop; table, JSON and a figure in bench/
	@$(BIN)/grok-nb bench --out bench

reproduce: export GROK_NB_STORE ?= $(CURDIR)/.grok_nb
reproduce: export CLAIMS := $(CLAIMS)
reproduce: setup ## Judge the claims of the papers at the cpu scale, two at a time; CLAIMS="dichotomy:*" for some
	@$(BIN)/grok-nb reproduce "$$CLAIMS" --scale cpu --jobs $(JOBS) --out nbs/papers/claims

# What the tests may be told: see dev/suite.py.
test check test-nbs test-py test-kill test-cpu: export NB := $(NB)
test check test-nbs test-py test-kill test-cpu: export TESTS := $(TESTS)
test check test-nbs test-py test-kill test-cpu: export ORDER := $(ORDER)
test check test-nbs test-py test-kill test-cpu: export THREADS := $(THREADS)

test: setup ## Every check and every test
	@$(BIN)/python dev/suite.py

check: setup ## Quick checks: notebooks and code in step, notebooks clean, layering, lint
	@$(BIN)/python dev/suite.py check

test-nbs: setup ## Run every notebook at smoke scale; NB="nbs/tasks/10_modular.ipynb ..." for some
	@$(BIN)/python dev/suite.py nbs

test-py: setup ## Run what a notebook cannot show (pytest); TESTS="tests/test_kill.py ..." for some
	@$(BIN)/python dev/suite.py py

test-kill: setup ## Fail and kill at every write of fit, sweep, transfer and remove, where `make test` takes a sample
	@$(BIN)/python dev/suite.py kill

test-cpu: setup ## Run every notebook at the cpu scale (three hours), and write down which passed; NB= for some
	@$(BIN)/python dev/suite.py cpu

test-busy: setup ## `make test` beside four busy loops
	@$(BIN)/python dev/busy.py $(MAKE) test

docs: setup ## Build the site in _docs/
	@$(BIN)/python dev/docs.py

readme: setup ## Write README.md from index.ipynb
	@$(BIN)/python dev/docs.py --readme

run-nbs: export GROK_NB_STORE ?= $(CURDIR)/.grok_nb
run-nbs: setup ## Run notebooks, keep their outputs and write down which passed; NB="nbs/tasks/10_modular.ipynb ..." for some of them
	@$(BIN)/python dev/run_nbs.py $(NB)

prepare: setup ## Before a commit: export the code, clean the notebooks, write README.md
	@$(BIN)/nbdev_clean
	@$(BIN)/nbdev_export
	@$(BIN)/python dev/docs.py --readme

constraints: export UPGRADE := $(UPGRADE)
constraints: setup ## Pin all packages anew in constraints.txt (UPGRADE=1: the newest of each)
	@sh dev/constraints.sh

clean: ## Remove what was built; keeps .venv and the trained runs in .grok_nb
	rm -rf _docs _site_src demo bench build dist .test tests/shots ./*.egg-info .pytest_cache .hypothesis .ruff_cache .import_linter_cache
	@find . -path ./.venv -prune -o -type d \( -name __pycache__ -o -name .ipynb_checkpoints \) -exec rm -rf {} +

distclean: clean ## Remove .venv too
	rm -rf .venv

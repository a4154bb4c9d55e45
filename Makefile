# make         set up .venv and run the default study; SNAKEMAKE_ARGS="..." goes to Snakemake
# make plan    set up and say what the study takes, before it runs
# make test    set up and test
# make lint    set up and check style
# make bench   set up and time what is ours beside other ways: results/benchmarks/*.csv

PYTHON ?= python3
VENV := .venv/bin/python
# Where another build of PyTorch is installed from, CPU only for instance; pip's own index if empty.
TORCH_INDEX ?=
TORCH = $(shell sed -n 's/^  "\(torch\(vision\)\{0,1\}==[^"]*\)".*/\1/p' pyproject.toml)
export OMP_NUM_THREADS ?= 1
TEST_PROCESSES ?= 2

.PHONY: all plan setup test lint bench

all: setup
	@$(VENV) workflow/scripts/run_study.py $(SNAKEMAKE_ARGS)

plan: setup
	@$(VENV) -m snakemake --cores 1 --quiet all --nolock $(SNAKEMAKE_ARGS) -- plan

setup: .venv/installed

.venv/installed: pyproject.toml
	@command -v $(PYTHON) > /dev/null || { echo "error: no $(PYTHON); set PYTHON to Python 3.11 or newer" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "error: Python 3.11 or newer is needed, this is %d.%d; set PYTHON" % sys.version_info[:2])'
	@echo "Setting up .venv (some minutes)"
	@$(PYTHON) -m venv .venv
	@$(if $(TORCH_INDEX),$(VENV) -m pip install --quiet --disable-pip-version-check --index-url $(TORCH_INDEX) $(TORCH))
	@$(VENV) -m pip install --quiet --disable-pip-version-check -e ".[test]"
	@touch $@

test: setup
	@$(VENV) -m pytest -n $(TEST_PROCESSES) --dist loadfile

lint: setup
	@$(VENV) -m ruff check .
	@$(VENV) -m ruff format --check .
	@$(VENV) -m snakefmt --check Snakefile workflow/rules
	@$(VENV) -m snakemake --lint

bench: setup
	@$(VENV) workflow/scripts/bench.py svd
	@$(VENV) workflow/scripts/bench.py training
	@$(VENV) workflow/scripts/bench.py gradients
	@$(VENV) workflow/scripts/bench.py costs
	@$(VENV) workflow/scripts/bench.py efficiency
	@$(VENV) workflow/scripts/bench.py scale

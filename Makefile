# `make all` runs the whole study, `make test` the tests; both make the environment first.

TORCH ?= torch==2.13.0
# The address of a package index that has the torch build you want (CPU only, another CUDA).
TORCH_INDEX ?=
# A Python 3.11, 3.12 or 3.13; found by itself where this is empty.
PYTHON ?=
CORES ?= 8
STUDY ?=
MODEL ?=

BIN := .venv/bin
STAMP := .venv/.complete
SNAKEMAKE := $(BIN)/python -m snakemake
CHECKED := mars tests workflow/scripts

.DEFAULT_GOAL := help
.PHONY: help env all quick study smollm2 random test test-fast lint format lock clean-study

help: ## what can be made
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' Makefile

env: $(STAMP) ## the environment .venv, if it is missing or outdated

$(STAMP): requirements.lock pyproject.toml
	@PYTHON="$(PYTHON)" TORCH="$(TORCH)" TORCH_INDEX="$(TORCH_INDEX)" sh workflow/scripts/make_env.sh

all: env ## the embedded study, from training to reports/embedded/index.html
	$(BIN)/python -m mars unlock
	$(SNAKEMAKE) --cores $(CORES) all

quick: env ## a first look in minutes: reports/quick/index.html
	$(BIN)/python -m mars unlock
	$(SNAKEMAKE) --cores $(CORES) --configfile config/quick.yaml -- all

study: env ## another study: make study STUDY=name, for config/name.yaml
	@$(BIN)/python -m mars config "config/$(STUDY).yaml" >/dev/null
	$(BIN)/python -m mars unlock
	$(SNAKEMAKE) --cores $(CORES) --configfile config/$(STUDY).yaml -- all

smollm2: env ## a small released checkpoint: results/checkpoints/smollm2-135m-instruct
	@$(BIN)/python workflow/scripts/make_smollm2.py

random: env ## an architecture with random weights, for speed alone: make random MODEL=qwen2.5-7b
	@$(BIN)/python workflow/scripts/make_random.py $(MODEL)

test: env lint ## style, types and every test, the slow ones too (what CI runs)
	$(BIN)/python -m pytest -n auto --dist loadfile

test-fast: env ## the tests without the slow ones
	$(BIN)/python -m pytest -m 'not slow'

lint: env ## ruff, mypy, snakefmt and snakemake --lint
	$(BIN)/python -m ruff check .
	$(BIN)/python -m ruff format --check .
	$(BIN)/python -m mypy
	$(BIN)/snakefmt --check Snakefile workflow
	$(SNAKEMAKE) --lint

format: env ## lay the sources out as `make lint` wants them
	$(BIN)/python -m ruff check --fix .
	$(BIN)/python -m ruff format .
	$(BIN)/snakefmt Snakefile workflow

lock: ## resolve requirements.lock again (needs uv)
	sh workflow/scripts/lock.sh

clean-study: ## delete what a study made: make clean-study STUDY=name
	@test -n "$(STUDY)" || { echo "name the study: make clean-study STUDY=name" >&2; exit 2; }
	rm -rf "results/$(STUDY)" "figures/$(STUDY)" "reports/$(STUDY)"

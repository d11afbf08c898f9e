# make demo     the main job: the LibriSpeech recipe on the offline demo corpus
# make check    a first answer: lint, and the short tests of the packages that differ from MAIN=main
# make test     the short tests of all packages, and the hybrid recipe end to end
# make test-all make test, then the long tests: whole recipes, kills, faulty corpora, guides
# make setup    the environment .venv, of the newest Python from 3.10 to 3.13 that is found, or PYTHON=3.12 or a path
# make lint     ruff, and mypy: what is typed fits together
# make setup-reference   the reference environment .venv-reference: Python 3.10, torch 1.13.1, k2, kaldifeat
# make test-reference    all tests, in the reference environment
# make test-engines      those of them that k2, kaldifeat or torch's version can change, and the hybrid recipe end to end;
#                        WORKERS=2 processes, as in all tests
# make test-gpu   the tests that compare a GPU with the CPU; fails without one; python=python3 for another environment
# make test-interop  the tests against other people's programs (sclite, kaldialign, ...); what cannot be installed is skipped
# make test-cluster  the tests on Spark and S3, on Ceph too where it is installed; needs a Java 17 (docs/cluster.md)
# make torture  disturb stages of the recipes in NUMBER=100 trials; feed hostile files, EXAMPLES=2000 per reader; SEED=0; MINUTES=30 of each
# make audit    known vulnerabilities in the locked packages, where pip-audit is installed
# make docs     the guides and the API reference as a site that needs no network: site/index.html
# make dist     the wheel and the source distribution, checked: dist/
# make test-dist  the wheel in an empty environment of every Python of PYTHON that is found: BUNDLE=exp/demo/final AUDIO=talks/
# make clean    remove the environments and the site; what recipes made stays

PYTHON ?= 3.13 3.12 3.11 3.10
python := .venv/bin/python
reference := .venv-reference/bin/python
cluster := .venv-cluster
docs := .venv-docs/bin/python
dist := .venv-dist/bin/python
extra = $(1) -c 'import tomllib; \
  print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["$(2)"], sep="\n")'
WORKERS ?= auto
pytest = pytest --numprocesses $(WORKERS) --dist loadfile --no-loadscope-reorder
setup_files := pyproject.toml $(filter-out %/__pycache__,$(wildcard setup/* setup/kaldifeat/* setup/kaldifeat/*/*))

NUMBER ?= 100
SEED ?= 0
EXAMPLES ?= 2000
MINUTES ?= inf
MAIN ?= main

# Tests start Python by the hundred: a third of a second each without the bytecode of the run before.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: setup setup-reference demo check test test-all test-gpu test-interop test-cluster test-reference test-engines torture audit lint docs dist test-dist clean

setup: .venv/ready

# Wheels alone; which build of torch, is for pip's settings to say (docs/install.md).
.venv/ready: pyproject.toml $(filter-out setup/__pycache__,$(wildcard setup/*))
	version=$$(setup/make-environment .venv $(PYTHON)) && \
	  $(python) -m pip install --quiet --constraint setup/python$$version.lock --editable ".[dev]"
	touch $@

demo: setup
	recipes/librispeech/run.py --profile demo

# What compares with k2, kaldifeat, kaldilm and torchaudio is skipped here; see test-engines.
test: setup
	$(python) -m $(pytest) -m "not long" $(if $(RUNS),--shared-runs=$(RUNS))

# The long tests look at one of the runs of the short ones, too.
test-all: setup
	runs=$$(mktemp -d) && trap 'rm -r "$$runs"' EXIT && \
	  $(MAKE) test RUNS=$$runs && $(python) -m $(pytest) -m long --shared-runs=$$runs

# tests/ mirrors toolkit/: a package's tests are in the folder of its name. Tests of packages that import the changed
# ones are left to `make test`.
known = $(shell git rev-parse --verify --quiet $(MAIN))
changed = $(sort $(wildcard $(shell git diff --name-only --merge-base $(MAIN) | sed -nE \
  -e 's,^(toolkit|tests)/([^/]+)/.*,tests/\2,p' -e 's,^toolkit/([^/]+)\.py$$,tests/test_\1.py,p' \
  -e 's,^tests/test_.*,&,p' -e 's,^(local|recipes|benchmarks)/.*,tests/\1,p')))

check: lint
	$(if $(known),,$(error there is no branch $(MAIN) to compare with; see MAIN))
	$(if $(changed),$(python) -m $(pytest) -m "not long" $(changed),@echo "No package differs from $(MAIN).")

# Without `setup`: where there is a GPU, the environment with its build of torch may be another, python=python3.
test-gpu:
	$(python) -c 'import sys, torch; sys.exit(None if torch.cuda.is_available() else "torch finds no GPU")'
	$(python) -m pytest tests/gpu

# INTEROP_EXAMPLES=500: at least 10,000 generated transcripts.
test-interop: .venv-interop/ready
	PYTHONPATH=.venv-interop $(python) -m $(pytest) -rs tests/interop tests/score/test_sclite.py

.venv-interop/ready: .venv/ready setup/interop setup/interop.txt
	setup/interop $(python) .venv-interop

# Of the proofs that take minutes, those on Spark and S3 run with PIPELINE_PROOFS=1 (CONTRIBUTING.md).
test-cluster: $(cluster)/ready
	@command -v java >/dev/null || { echo "test-cluster: Spark needs Java 17, which is not on the PATH" >&2; exit 1; }
	PYTHONPATH=$(CURDIR)/$(cluster) $(python) -c "import moto.server, pyspark, s3fs"
	PYTHONPATH=$(CURDIR)/$(cluster) $(python) -m pytest -rs --durations 10 tests/pipeline/test_spark.py \
	  tests/pipeline/test_objects_s3.py tests/pipeline/test_ceph.py tests/pipeline/test_attempts.py tests/pipeline/test_run_plan.py \
	  tests/pipeline/steps/test_stores.py::test_every_step_on_a_faulty_s3_gives_the_bytes_of_a_local_disk \
	  tests/recipes/test_farfield_ssl.py::test_a_student_of_shards_in_a_store_equals_that_of_a_folder

$(cluster)/ready: .venv/ready setup/cluster.txt
	$(python) -m pip install --quiet --upgrade --target $(cluster) --requirement setup/cluster.txt
	touch $@

torture: setup
	$(python) -m tests.torture --number $(NUMBER) --seed $(SEED) --minutes $(MINUTES)
	$(python) -m tests.fuzz --number $(EXAMPLES) --seed $(SEED) --minutes $(MINUTES)

audit: setup
	setup/audit $(python)

lint: setup
	$(python) -m ruff check .
	$(python) -m ruff format --check .
	$(python) -m mypy

setup-reference: .venv-reference/ready

# pip stays below 24, since newer ones refuse the names of k2's wheels; setup/k2.txt has another of their peculiarities.
.venv-reference/ready: $(setup_files)
	setup/make-environment .venv-reference 3.10
	$(reference) -m pip install --quiet --no-deps --require-hashes --requirement setup/pip.txt
	$(reference) -m pip install --quiet --no-deps --require-hashes --requirement setup/k2.txt
	$(reference) -m pip install --quiet --constraint setup/reference.lock --editable ".[dev,reference]"
	setup/kaldifeat/install.sh $(reference)
	touch $@

test-reference: setup-reference
	$(reference) -m $(pytest)

# Without what tests runners, pages, pipelines, guides and hostile files, which `make test` does, and without asynchronous training,
# whose workers wait for each other; of the recipes one from audio to error rates.
engine_tests := $(addprefix tests/,align decode features fsa hmm lang models ssl train) $(wildcard tests/test_*.py) \
  $(filter-out tests/parallel/test_asynchronous%,$(wildcard tests/parallel/test_*.py)) tests/recipes/test_librispeech.py

test-engines: setup-reference
	$(reference) -m $(pytest) --one-recipe-run $(engine_tests)

docs: .venv-docs/ready
	NO_MKDOCS_2_WARNING=1 $(docs) -m mkdocs build --strict
	@echo "The documentation is in site/index.html."

# The extra `docs` alone: the pages are made from the sources, without importing them. Any Python from 3.11 on will do.
.venv-docs/ready: pyproject.toml
	setup/make-environment .venv-docs 3.14 3.13 3.12 3.11
	$(call extra,$(docs),docs) >.venv-docs/requirements.txt
	$(docs) -m pip install --quiet --requirement .venv-docs/requirements.txt
	touch $@

dist: .venv-dist/ready
	rm -rf dist
	$(dist) setup/dist.py dist

# The extra `dist` alone.
.venv-dist/ready: pyproject.toml
	setup/make-environment .venv-dist 3.14 3.13 3.12 3.11
	$(call extra,$(dist),dist) >.venv-dist/requirements.txt
	$(dist) -m pip install --quiet --requirement .venv-dist/requirements.txt
	touch $@

test-dist: dist setup
	PATH="$(CURDIR)/.venv-dist/bin:$$PATH" setup/test-dist dist/*.whl $(PYTHON)

clean:
	rm -rf .venv .venv-interop .venv-cluster .venv-reference .venv-docs .venv-dist site dist

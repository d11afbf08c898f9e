# make demo     the main job: the LibriSpeech recipe on the offline demo corpus
# make test     all tests, in the reference environment (Python 3.10, torch 1.13.1, k2)
# make setup    the reference environment alone, in .venv
# make lint     ruff
# make test-modern   the tests that need no FSAs, on Python 3.11 and torch 2.13 without k2
# make docs     the guides and the API reference as a site that needs no network: site/index.html
# make clean    remove the environments and the site; what recipes made stays

python := .venv/bin/python
modern := .venv-modern/bin/python
docs := .venv-docs/bin/python
setup_files := pyproject.toml requirements.lock $(wildcard setup/* setup/kaldifeat/* setup/kaldifeat/*/*)

.PHONY: setup demo test lint test-modern docs clean

setup: .venv/ready

# pip stays below 24, because k2's wheel has a tag that later pips refuse; setup/k2.txt has another of its peculiarities.
.venv/ready: $(setup_files)
	found=$$(setup/find-python 3.10) && "$$found" -m venv .venv
	$(python) -m pip install --quiet "pip<24"
	$(python) -m pip install --quiet --no-deps --require-hashes --requirement setup/k2.txt
	$(python) -m pip install --quiet --constraint requirements.lock --editable ".[dev]"
	setup/kaldifeat/install.sh $(python)
	touch $@

demo: setup
	recipes/librispeech/run.py --profile demo

test: setup
	$(python) -m pytest --numprocesses auto --dist loadfile --no-loadscope-reorder

lint: setup
	$(python) -m ruff check .
	$(python) -m ruff format --check .

test-modern: .venv-modern/ready
	$(modern) -m pytest --numprocesses auto --dist loadfile --no-loadscope-reorder

.venv-modern/ready: pyproject.toml
	found=$$(setup/find-python 3.11) && "$$found" -m venv .venv-modern
	$(modern) -m pip install --quiet "torch==2.13.0"
	$(modern) -m pip install --quiet --editable ".[dev]"
	touch $@

docs: .venv-docs/ready
	NO_MKDOCS_2_WARNING=1 $(docs) -m mkdocs build --strict
	@echo "The documentation is in site/index.html."

# The extra `docs` alone: the pages are made from the sources, without importing them. Any Python from 3.11 on will do.
.venv-docs/ready: pyproject.toml
	found=$$(for version in 3.14 3.13 3.12; do setup/find-python $$version 2>/dev/null && exit; done; \
	  setup/find-python 3.11) && "$$found" -m venv .venv-docs
	$(docs) -c 'import tomllib; \
	  print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["docs"], sep="\n")' \
	  >.venv-docs/requirements.txt
	$(docs) -m pip install --quiet --requirement .venv-docs/requirements.txt
	touch $@

clean:
	rm -rf .venv .venv-modern .venv-docs site

# `make demo` sets up an environment and builds the samples of every pipeline. `make test` runs the tests.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# modules are compiled when they are first imported, because the readers have 32,000 modules. Most are never imported, and
# pip would need a minute and a half to compile all
PIP = $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile
# the trainers' own readers, for tests of the views. `make test READERS=` does not install them, nor PyTorch
READERS ?= ,readers
# buckets (r2, gcs), TensorFlow and readers of TFDS directories (tfds), near-duplicates (duplicates), tokenizers without
# tokenizer.json (transformers), words of a language (words)
EXTRAS ?= r2,gcs,tfds,duplicates,transformers,words
# a variable, because a comma ends an argument of make's functions, and pip rejects empty extras (`.[]`, `.[,dev]`)
comma := ,
# On this platform, requirements/ has the hash of every installed file. On others, only the versions are pinned
HASHED := $(filter Linux-x86_64,$(shell uname -s)-$(shell uname -m))
hashed = $(foreach extra,$(subst $(comma), ,$(1)),-r requirements/$(extra).txt)
SAMPLES := sample_corpus sample_documents sample_duplicates sample_notes sample_replay sample_notes_replay_combined sample_release sample_tasks sample_blend_pretrain sample_blend_sft sample_blend_pairs sample_blend_rl sample_schedule

# tests do not wait for the disk, which would take a quarter of a short run. This is safe, because no test cuts the power,
# and written data survives a kill. With `EATMYDATA=`, tests wait
EATMYDATA ?= $(shell command -v eatmydata)
# two more processes than cores, because tests wait for servers, daemons and kills for more than a quarter of the time. One
# process runs all tests of a file, and the longest files start first
PYTEST := $(EATMYDATA) $(BIN)/python -m pytest -n $$(( $$(getconf _NPROCESSORS_ONLN) + 2 )) --dist loadfile --no-loadscope-reorder

export DAGSTER_HOME := $(CURDIR)/.dagster
export DAGSTER_DISABLE_TELEMETRY := yes
# set, because `dg` otherwise warns in every command that the active environment is not the project's
export VIRTUAL_ENV := $(CURDIR)/$(VENV)
# unset, because tests start hundreds of processes, and compiling all modules in each costs a fifth of a short command
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test test-slow test-all test-quick test-dagster test-lowest durations torch candidate ui bench bench-curation check lint types style definitions docs docs-reference clean

# One sample reads a custom asset, which must be materialized first. It is materialized again only if its code or its data is
# newer, or if its output was deleted or changed
UPSTREAM := dg launch --assets sample_cleaning/pages
SHIPPED := dataprep_assets/defs/samples
CLEANED := .dataprep/sample_cleaning
CLEANED := $(CLEANED) $(CLEANED)/train $(CLEANED)/val $(wildcard $(CLEANED)/*/*.jsonl)

demo: $(VENV)/.installed $(DAGSTER_HOME)/sample_cleaning
	@$(BIN)/dataprep run $(SAMPLES)

$(DAGSTER_HOME)/sample_cleaning: $(SHIPPED)/sample_cleaning/pages.py $(wildcard $(SHIPPED)/sample_corpus/data/*/chunk1/*) $(CLEANED) \
  | $(VENV)/.installed $(DAGSTER_HOME)/dagster.yaml
	@$(BIN)/$(UPSTREAM) >/dev/null
	@touch $@

# a rule without commands, because a missing file must count as new
$(CLEANED): ;

ui: $(VENV)/.installed $(DAGSTER_HOME)/dagster.yaml
	$(BIN)/dataprep ui

# With `REPEAT=yes`, which CI sets, failed tests run again in new processes, and must then pass. The reason is that one of
# thousands of tests with servers and kills can exceed its time limit on a loaded machine. Tests are not repeated after an
# interrupted session. $(call tests,ARGUMENTS,TIER): ARGUMENTS select the tests, and TIER is the name of the report, from
# which `make durations` reads the duration of each file
REPEAT ?=
REPORTS := build/reports
tests = $(PYTEST) $(1) $(if $(2),--junitxml=$(REPORTS)/$(2).xml) || { test $$? = 1 && test -n "$(REPEAT)" && echo "Running failed tests again" && \
	$(PYTEST) $(1) --last-failed --last-failed-no-failures none; }

# tests without servers, kills, browsers or full pipelines. `test-slow` runs all other tests, `test-all` runs both
test: $(VENV)/.installed-tests check
	$(call tests,-m "not slow",fast)

test-slow: $(VENV)/.installed-tests
	$(call tests,-m slow,slow)

test-all: test test-slow

# tests near the files that changed since the commit SINCE, for at most three minutes
SINCE ?= HEAD
test-quick: $(VENV)/.installed-tests
	files=$$($(BIN)/python -m dataprep_assets_tests.tools.changed_tests --since $(SINCE)) && \
	  if [ -n "$$files" ]; then $(PYTEST) -m "not slow" $$files; else echo 'No test imports a changed file'; fi

# save the durations in the reports, and show the slowest tests
durations:
	$(BIN)/python -m dataprep_assets_tests.tools.durations $(wildcard $(REPORTS)/*.xml)

# Tests with a different version of Dagster, installed without hashes in addition to all other packages. The default is the
# oldest version that the wheel allows. `make test-dagster DAGSTER=1.13.5` selects a version, and `DAGSTER=` the newest one.
# Dagster 1.12.x needs versions 0.28.x of its libraries
DAGSTER ?= $(shell sed -n 's/^  "dagster>=\([0-9.]*\),.*/\1/p' pyproject.toml)
OTHER := build/dagster-$(or $(DAGSTER),newest)
PACKAGES_OF_DAGSTER := dagster dagster-webserver dagster-dg-cli
# $(call pins,VERSION)
pins = $(PACKAGES_OF_DAGSTER:%=%==$(1)) $(foreach name,aws gcp k8s postgres,dagster-$(name)==$(shell echo $(1) | awk -F. '{ print "0." $$2 + 16 "." $$3 }'))
# tests of features that a version of Dagster can change: definitions, runs and their checks, partitions, sensors, backfills,
# data versions, the IO manager and the webserver
SAMPLES_OF_DAGSTER := sample_corpus sample_notes
TESTS_OF_DAGSTER := $(addprefix orchestration/test_,$(addsuffix .py,assets automation build failure_sensor freshness partitions planning runs versions)) \
  webserver resources/test_io_manager.py
test-dagster: $(VENV)/.installed-tests
	rm -rf $(OTHER)
	$(BIN)/python -m venv --without-pip $(OTHER)
	$(BIN)/python -c "import sysconfig; print('import site; site.addsitedir(%r)' % sysconfig.get_path('purelib'))" \
	  > "$$(echo $(OTHER)/lib/python3*/site-packages)/beside.pth"
	$(BIN)/python -m pip --python $(OTHER)/bin/python install --quiet --disable-pip-version-check --no-compile --no-warn-conflicts --upgrade \
	  $(foreach version,$(or $(DAGSTER),$(shell $(BIN)/python -m dataprep_assets_tests.tools.newest_dagster $(PACKAGES_OF_DAGSTER))),$(call pins,$(version)))
	$(if $(DAGSTER),,ls -d $(OTHER)/lib/python3*/site-packages/dagster >/dev/null 2>&1 || { echo 'No newer Dagster found'; exit 0; };) \
	$(OTHER)/bin/python -c 'import dagster; print("Dagster", dagster.__version__)' && \
	mkdir -p $(OTHER)/home && export DAGSTER_HOME=$(CURDIR)/$(OTHER)/home DATAPREP_ROOT=$(CURDIR)/$(OTHER)/data && \
	$(OTHER)/bin/dg check defs && $(OTHER)/bin/$(UPSTREAM) >/dev/null && \
	$(OTHER)/bin/python -m dataprep_assets.cli run $(SAMPLES_OF_DAGSTER) && \
	{ $(subst $(BIN),$(OTHER)/bin,$(call tests,$(addprefix dataprep_assets_tests/,$(TESTS_OF_DAGSTER)))); }

# Builds the sample of a new project with the oldest versions that pyproject.toml allows for the wheel's own requirements. pip
# chooses the versions of all other packages
LOWEST := build/lowest
test-lowest:
	rm -rf $(LOWEST)
	$(PYTHON) -m venv $(LOWEST)
	$(PYTHON) -m dataprep_assets_tests.tools.lowest > $(LOWEST)/constraints.txt
	$(LOWEST)/bin/python -m pip install --quiet --disable-pip-version-check --no-compile -c $(LOWEST)/constraints.txt .
	$(LOWEST)/bin/python -m pip check
	cd $(LOWEST) && env -u PYTHONPATH bin/dataprep init project && cd project && for command in list "check sample_corpus" "run sample_corpus" \
	  "status sample_corpus" "show sample_corpus" verify; do ../bin/dataprep $$command || exit 1; done

# in parallel, because mypy takes as long as the others together. The output of each target stays together
lint check: $(VENV)/.installed-tests
	@$(MAKE) --no-print-directory --jobs=2 --output-sync=target types style $(if $(filter check,$@),definitions)

types:
	$(BIN)/mypy

style:
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/python -m dataprep_assets_tests.tools.prose

definitions:
	@mkdir -p -m 700 $(DAGSTER_HOME)
	$(BIN)/dg check yaml
	$(BIN)/dg check defs

docs-reference: $(VENV)/.installed
	$(BIN)/python -m dataprep_assets_tests.docs.reference
	$(BIN)/python -m dataprep_assets_tests.docs.checks
	$(BIN)/python -m dataprep_assets_tests.docs.commands
	$(BIN)/python -m dataprep_assets_tests.docs.pictures

# builds the site with search, without a network. It does not use `--quiet`, with which `--strict` accepts everything
docs: $(VENV)/.installed-tests
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo 'build/site/index.html; with search: $(BIN)/python -m http.server --bind 127.0.0.1 --directory build/site 8000'

bench: $(VENV)/.installed-tests
	$(BIN)/python -m dataprep_assets_tests.tools.bench
	$(BIN)/python -m dataprep_assets_tests.tools.bench --languages
	$(BIN)/python -m dataprep_assets_tests.tools.bench.pretrain --only d,e,f,floor
	$(BIN)/python -m dataprep_assets_tests.tools.bench.whole_run
	$(BIN)/python -m dataprep_assets_tests.tools.bench.memory
# these exit with an error if they miss a target. The leading `-` lets the next benchmarks run anyway
	-$(BIN)/python -m dataprep_assets_tests.tools.bench.sft
	-$(BIN)/python -m dataprep_assets_tests.tools.bench.cohorts
	-$(BIN)/python -m dataprep_assets_tests.tools.bench.corpus_checks

bench-curation: $(VENV)/.installed-tests
	$(BIN)/python -m dataprep_assets_tests.tools.bench.taggers
	$(BIN)/python -m dataprep_assets_tests.tools.bench.curated_run

$(VENV)/.installed: pyproject.toml constraints.txt $(wildcard requirements/*.txt)
	$(PYTHON) -c 'import sys; sys.exit(0 if (3, 11) <= sys.version_info[:2] < (3, 14) else "Python 3.11 to 3.13 is required. Run: make PYTHON=python3.12 demo")'
	$(PYTHON) -m venv $(VENV)
ifneq ($(HASHED),)
# first the build tools, because tools that pip downloads itself have no hashes
	$(PIP) --require-hashes --no-deps -r requirements/base.txt
	$(if $(EXTRAS),$(PIP) --require-hashes --no-deps --no-build-isolation $(call hashed,$(EXTRAS)))
	$(PIP) --no-deps --no-build-isolation -e .
else
	$(PIP) -c constraints.txt -e '.$(if $(EXTRAS),[$(EXTRAS)])'
endif
	touch $@

# The tests start hundreds of Python processes, most of which end soon after their imports. Garbage collection took a fifth of
# their time, so it runs as rarely as in the `dataprep` command
$(VENV)/.installed-tests: $(VENV)/.installed
ifneq ($(HASHED),)
	$(PIP) --require-hashes --no-deps --no-build-isolation $(call hashed,k8s$(comma)ray$(comma)dev$(READERS))
	$(if $(READERS),$(MAKE) --no-print-directory torch)
	$(MAKE) --no-print-directory candidate
else
	$(PIP) -c constraints.txt -e '.[$(if $(EXTRAS),$(EXTRAS)$(comma))k8s,ray,dev$(READERS)]'
# without dependencies, because mosaicml-streaming declares older versions (NumPy) than it works with, and pip would reject it.
# The requirements of the others are already installed, or are for other kinds of storage
	$(if $(READERS),$(PIP) -c constraints.txt --no-deps mosaicml-streaming trl accelerate \
		ai2-olmo-core bettermap cached-path dataclass-extensions)
	$(MAKE) --no-print-directory candidate
endif
	echo 'import gc; gc.set_threshold(400_000, 20, 20)' > \
	  "$$($(BIN)/python -c "import sysconfig; print(sysconfig.get_path('purelib'))")/seldom_collected.pth"
	touch $@

# A release candidate of tokenizers 1.0, to test its interface. It is installed in a separate folder, because transformers does
# not allow it yet. Tests that need it are skipped if it is missing
candidate:
	-$(PIP) $(if $(HASHED),--require-hashes )--no-deps --upgrade --target build/tokenizers-next -r dataprep_assets_tests/tokenization/candidate.txt

# PyTorch: downloads the wheel that pip chooses on this machine into its own folder, and installs it from there with its hash.
# (With hashes, pip would otherwise prefer a wheel of the index to a local wheel for CPUs.) Then installs the packages for GPUs,
# if the wheel needs them
torch:
	rm -rf build/torch
	$(BIN)/python -m pip download --quiet --disable-pip-version-check --no-deps -c constraints.txt -d build/torch torch
	PIP_FIND_LINKS=build/torch $(PIP) --require-hashes --no-deps --no-index -r requirements/torch.txt
	ls build/torch/*+cpu-*.whl >/dev/null 2>&1 || $(PIP) --require-hashes --no-deps -r requirements/torch-gpu.txt
	rm -rf build/torch

# opens the instance, because its tables and the limits of its pools must exist before the first run
$(DAGSTER_HOME)/dagster.yaml: deploy/local/dagster.yaml | $(VENV)/.installed
	mkdir -p -m 700 $(DAGSTER_HOME)
	cp $< $@
	$(BIN)/python -c 'from dataprep_assets import open_project; open_project().instance().__enter__()'

clean:
	rm -rf $(VENV) .dagster .dataprep

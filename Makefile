# Two commands set everything up: `make demo` runs the samples of every pipeline, `make test` passes the tests.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Modules are compiled at their first import, because pip would take a minute and a half to compile all 32,000 modules of
# the readers, most of which are never imported
PIP = $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile
# the trainers' own libraries, for the tests of the views; `make test READERS=` omits them and PyTorch
READERS ?= ,readers
# buckets (r2, gcs), TensorFlow with the readers of TFDS directories (tfds), near-deduplication (duplicates), tokenizers in
# other formats (transformers)
EXTRAS ?= r2,gcs,tfds,duplicates,transformers
# pip refuses empty extras, `.[]` and `.[,dev]`; and a literal comma would end an argument of make's `call`
comma := ,
# Set on platforms for which requirements/ has the hash of every installed file; on others only versions are fixed
HASHED := $(filter Linux-x86_64,$(shell uname -s)-$(shell uname -m))
hashed = $(foreach extra,$(subst $(comma), ,$(1)),-r requirements/$(extra).txt)
SAMPLES := sample_corpus sample_documents sample_duplicates sample_notes sample_replay sample_notes_replay_combined sample_release sample_tasks sample_blend_pretrain sample_blend_sft sample_blend_pairs sample_blend_rl sample_schedule

# Tests need not wait for the disk, which takes a quarter of a short run, because no test simulates a power failure and a
# kill loses no written data; with `EATMYDATA=` they wait
EATMYDATA ?= $(shell command -v eatmydata)
# Two processes more than cores, because tests spend more than a quarter of their time waiting for servers, daemons and
# kills. One process runs all tests of a file, and the slowest files come first
PYTEST := $(EATMYDATA) $(BIN)/python -m pytest -n $$(( $$(getconf _NPROCESSORS_ONLN) + 2 )) --dist loadfile --no-loadscope-reorder

export DAGSTER_HOME := $(CURDIR)/.dagster
export DAGSTER_DISABLE_TELEMETRY := yes
# set as by activation, because otherwise `dg` warns at every command that this is not the project's environment
export VIRTUAL_ENV := $(CURDIR)/$(VENV)
# unset, because the tests start hundreds of processes, and compiling all modules takes a fifth of a short command
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test test-slow test-all test-quick test-dagster test-lowest durations torch candidate ui bench check lint types style definitions docs docs-reference clean

# One sample reads the files of a Dagster asset that is not a dataset, which must be materialized first. It is materialized
# again only when its code or its data is newer, or when its output is missing or was changed
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

# missing files count as new
$(CLEANED): ;

ui: $(VENV)/.installed $(DAGSTER_HOME)/dagster.yaml
	$(BIN)/dataprep ui

# With `REPEAT=yes`, as in CI, failed tests run again in new processes without other load, and must pass then, because on a
# busy machine one of thousands of tests with servers and kills may exceed its time limit. Nothing is repeated after an
# interrupted session. $(call tests,WORDS,TIER) is the command for the tests that WORDS select; TIER is the name of its
# report, from which `make durations` reads the time of each file
REPEAT ?=
REPORTS := build/reports
tests = $(PYTEST) $(1) $(if $(2),--junitxml=$(REPORTS)/$(2).xml) || { test $$? = 1 && test -n "$(REPEAT)" && echo "Running the failed tests again" && \
	$(PYTEST) $(1) --last-failed --last-failed-no-failures none; }

# tests without a server, kill, browser or full pipeline; `test-slow` is the rest, `test-all` both
test: $(VENV)/.installed-tests check
	$(call tests,-m "not slow",fast)

test-slow: $(VENV)/.installed-tests
	$(call tests,-m slow,slow)

test-all: test test-slow

# while you work: the tests of everything changed since the commit SINCE, at most three minutes
SINCE ?= HEAD
test-quick: $(VENV)/.installed-tests
	files=$$($(BIN)/python -m dataprep_assets_tests.tools.changed_tests --since $(SINCE)) && \
	  if [ -n "$$files" ]; then $(PYTEST) -m "not slow" $$files; else echo 'No test imports a changed file'; fi

# store the times in the reports, and show the slowest tests
durations:
	$(BIN)/python -m dataprep_assets_tests.tools.durations $(wildcard $(REPORTS)/*.xml)

# Test another version of Dagster with all other installed packages, without hashes: `make test-dagster DAGSTER=1.13.5`. The
# default is the oldest version that the wheel allows, and `DAGSTER=` (empty) the newest. Dagster 1.12.x has libraries 0.28.x
DAGSTER ?= $(shell sed -n 's/^  "dagster>=\([0-9.]*\),.*/\1/p' pyproject.toml)
OTHER := build/dagster-$(or $(DAGSTER),newest)
LIBRARIES := $(shell echo $(DAGSTER) | awk -F. 'NF { print "==0." $$2 + 16 "." $$3 }')
# areas that a version of Dagster may change: loading of definitions, runs with checks, partitions, sensors, backfills, data
# versions, the IO manager and the webserver
SAMPLES_OF_DAGSTER := sample_corpus sample_notes
TESTS_OF_DAGSTER := $(addprefix orchestration/test_,$(addsuffix .py,assets automation build failure_sensor freshness partitions planning runs versions)) \
  webserver resources/test_io_manager.py
test-dagster: $(VENV)/.installed-tests
	rm -rf $(OTHER)
	$(BIN)/python -m venv --without-pip $(OTHER)
	$(BIN)/python -c "import sysconfig; print('import site; site.addsitedir(%r)' % sysconfig.get_path('purelib'))" \
	  > "$$(echo $(OTHER)/lib/python3*/site-packages)/beside.pth"
	$(BIN)/python -m pip --python $(OTHER)/bin/python install --quiet --disable-pip-version-check --no-compile --no-warn-conflicts --upgrade \
	  $(foreach name,dagster dagster-webserver dagster-dg-cli,$(name)$(if $(DAGSTER),==$(DAGSTER))) \
	  $(foreach name,aws gcp k8s postgres,dagster-$(name)$(LIBRARIES))
	$(if $(DAGSTER),,ls -d $(OTHER)/lib/python3*/site-packages/dagster >/dev/null 2>&1 || { echo 'No Dagster is newer'; exit 0; };) \
	$(OTHER)/bin/python -c 'import dagster; print("Dagster", dagster.__version__)' && \
	mkdir -p $(OTHER)/home && export DAGSTER_HOME=$(CURDIR)/$(OTHER)/home DATAPREP_ROOT=$(CURDIR)/$(OTHER)/data && \
	$(OTHER)/bin/dg check defs && $(OTHER)/bin/$(UPSTREAM) >/dev/null && \
	$(OTHER)/bin/python -m dataprep_assets.cli run $(SAMPLES_OF_DAGSTER) && \
	{ $(subst $(BIN),$(OTHER)/bin,$(call tests,$(addprefix dataprep_assets_tests/,$(TESTS_OF_DAGSTER)))); }

# Run the samples, in a `dataprep init` project, with the oldest versions that pyproject.toml allows of the wheel's own
# requirements, and with pip's choice of all others
LOWEST := build/lowest
test-lowest:
	rm -rf $(LOWEST)
	$(PYTHON) -m venv $(LOWEST)
	$(PYTHON) -m dataprep_assets_tests.tools.lowest > $(LOWEST)/constraints.txt
	$(LOWEST)/bin/python -m pip install --quiet --disable-pip-version-check --no-compile -c $(LOWEST)/constraints.txt .
	$(LOWEST)/bin/python -m pip check
	cd $(LOWEST) && env -u PYTHONPATH bin/dataprep init project && cd project && for command in list "check sample_corpus" "run sample_corpus" \
	  "status sample_corpus" "show sample_corpus" verify; do ../bin/dataprep $$command || exit 1; done

# two jobs, because mypy takes as long on one core as all others together; the output of each is kept together
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

# the site with search, without network access; not with `--quiet`, which makes `--strict` accept everything
docs: $(VENV)/.installed-tests
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo 'build/site/index.html; with search: $(BIN)/python -m http.server --bind 127.0.0.1 --directory build/site 8000'

bench: $(VENV)/.installed-tests
	$(BIN)/python -m dataprep_assets_tests.tools.bench
	$(BIN)/python -m dataprep_assets_tests.tools.bench --languages
	$(BIN)/python -m dataprep_assets_tests.tools.bench.pretrain --only d,e,f,floor
	$(BIN)/python -m dataprep_assets_tests.tools.bench.whole_run
	$(BIN)/python -m dataprep_assets_tests.tools.bench.memory
# these fail if a performance target is missed, but the others still run
	-$(BIN)/python -m dataprep_assets_tests.tools.bench.sft
	-$(BIN)/python -m dataprep_assets_tests.tools.bench.cohorts
	-$(BIN)/python -m dataprep_assets_tests.tools.bench.corpus_proofs

$(VENV)/.installed: pyproject.toml constraints.txt $(wildcard requirements/*.txt)
	$(PYTHON) -c 'import sys; sys.exit(0 if (3, 11) <= sys.version_info[:2] < (3, 14) else "Python 3.11 to 3.13 is needed: make PYTHON=python3.12 demo")'
	$(PYTHON) -m venv $(VENV)
ifneq ($(HASHED),)
# first the build requirements, because pip would download them without hashes
	$(PIP) --require-hashes --no-deps -r requirements/base.txt
	$(if $(EXTRAS),$(PIP) --require-hashes --no-deps --no-build-isolation $(call hashed,$(EXTRAS)))
	$(PIP) --no-deps --no-build-isolation -e .
else
	$(PIP) -c constraints.txt -e '.$(if $(EXTRAS),[$(EXTRAS)])'
endif
	touch $@

# All processes collect garbage as rarely as the `dataprep` command does, because the tests start hundreds of Python
# processes that mostly end soon after their imports, and collection took a fifth of their time
$(VENV)/.installed-tests: $(VENV)/.installed
ifneq ($(HASHED),)
	$(PIP) --require-hashes --no-deps --no-build-isolation $(call hashed,k8s$(comma)ray$(comma)dev$(READERS))
	$(if $(READERS),$(MAKE) --no-print-directory torch)
	$(MAKE) --no-print-directory candidate
else
	$(PIP) -c constraints.txt -e '.[$(if $(EXTRAS),$(EXTRAS)$(comma))k8s,ray,dev$(READERS)]'
# without dependencies, because mosaicml-streaming declares older versions (of NumPy) than it needs, which pip would refuse
# together with ours. The requirements of the others are installed anyway, or are for other storage
	$(if $(READERS),$(PIP) -c constraints.txt --no-deps mosaicml-streaming trl accelerate \
		ai2-olmo-core bettermap cached-path dataclass-extensions)
	$(MAKE) --no-print-directory candidate
endif
	echo 'import gc; gc.set_threshold(400_000, 20, 20)' > \
	  "$$($(BIN)/python -c "import sysconfig; print(sysconfig.get_path('purelib'))")/seldom_collected.pth"
	touch $@

# tokenizers 1.0 before its release, in a separate folder, because transformers does not allow it yet. Tests that need it
# are skipped without it
candidate:
	-$(PIP) $(if $(HASHED),--require-hashes )--no-deps --upgrade --target build/tokenizers-next -r dataprep_assets_tests/tokenization/candidate.txt

# PyTorch: the file that pip selects for this machine, in its own folder, where its hash is checked (with hashes, pip would
# prefer a file of the index to a local one for CPUs); then its requirements for GPUs, if it has any
torch:
	rm -rf build/torch
	$(BIN)/python -m pip download --quiet --disable-pip-version-check --no-deps -c constraints.txt -d build/torch torch
	PIP_FIND_LINKS=build/torch $(PIP) --require-hashes --no-deps --no-index -r requirements/torch.txt
	ls build/torch/*+cpu-*.whl >/dev/null 2>&1 || $(PIP) --require-hashes --no-deps -r requirements/torch-gpu.txt
	rm -rf build/torch

# also creates its tables and limits its pools before the first run
$(DAGSTER_HOME)/dagster.yaml: deploy/local/dagster.yaml | $(VENV)/.installed
	mkdir -p -m 700 $(DAGSTER_HOME)
	cp $< $@
	$(BIN)/python -c 'from dataprep_assets import open_project; open_project().instance().__enter__()'

clean:
	rm -rf $(VENV) .dagster .dataprep

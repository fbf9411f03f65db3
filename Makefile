# Two commands set everything up: `make demo` runs the samples of every pipeline, `make test` passes the tests.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# modules are compiled when they are first imported: of the 32,000 that the readers bring most never are, and pip takes
# a minute and a half for all of them
PIP = $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile
# the trainers' own readers, for the tests of the views; `make test READERS=` leaves them (and PyTorch) out
READERS ?= ,readers
# buckets (r2, gcs), TensorFlow with the readers of TFDS directories (tfds), near-duplicates (duplicates), tokenizers of
# other forms (transformers)
EXTRAS ?= r2,gcs,tfds,duplicates,transformers
# pip refuses empty extras, `.[]` and `.[,dev]`; and in a call of make's a comma ends the argument
comma := ,
# Where every file that is installed has a hash in requirements/; elsewhere its version alone is fixed
HASHED := $(filter Linux-x86_64,$(shell uname -s)-$(shell uname -m))
hashed = $(foreach extra,$(subst $(comma), ,$(1)),-r requirements/$(extra).txt)
SAMPLES := sample_corpus sample_documents sample_duplicates sample_notes sample_replay sample_notes_replay_combined sample_release sample_tasks sample_blend_pretrain sample_blend_sft sample_blend_pairs sample_blend_rl sample_schedule

# no test cuts the power, and a kill loses nothing that was written, so tests need not wait for the disk, which takes a
# quarter of a short run; with `EATMYDATA=` they wait
EATMYDATA ?= $(shell command -v eatmydata)
# two processes more than cores: tests wait for servers, daemons and kills for more than a quarter of the time. One
# process runs all tests of a file, and the longest files go first
PYTEST := $(EATMYDATA) $(BIN)/python -m pytest -n $$(( $$(getconf _NPROCESSORS_ONLN) + 2 )) --dist loadfile --no-loadscope-reorder

export DAGSTER_HOME := $(CURDIR)/.dagster
export DAGSTER_DISABLE_TELEMETRY := yes
# as activating it does: without, `dg` warns of every command that this is another environment than the project's
export VIRTUAL_ENV := $(CURDIR)/$(VENV)
# hundreds of processes start in the tests: compiling all modules in each costs a fifth of a short command
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test test-slow test-all test-quick test-dagster test-lowest durations torch candidate ui bench check lint types style definitions docs docs-reference clean

# one sample goes on from an asset that is no dataset: whoever has such an asset materializes it, as Dagster does; again
# only when its code or its data is newer, or what it wrote is gone or was changed
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

# what is not there counts as new
$(CLEANED): ;

ui: $(VENV)/.installed $(DAGSTER_HOME)/dagster.yaml
	$(BIN)/dataprep ui

# Of thousands of tests with servers and kills one may miss its limit on a busy machine: with `REPEAT=yes`, as CI has it, what
# failed is run again, in new processes and with nothing beside it, and has to pass then. Nothing is repeated after a
# session that was cut short. $(call tests,WORDS,TIER) is the command with the words that say which tests; TIER is the name
# of its report, of which `make durations` takes how long each file took
REPEAT ?=
REPORTS := build/reports
tests = $(PYTEST) $(1) $(if $(2),--junitxml=$(REPORTS)/$(2).xml) || { test $$? = 1 && test -n "$(REPEAT)" && echo "What failed is run again" && \
	$(PYTEST) $(1) --last-failed --last-failed-no-failures none; }

# what uses no server, kill or browser, and no full pipeline; `test-slow` is the rest, `test-all` both
test: $(VENV)/.installed-tests check
	$(call tests,-m "not slow",fast)

test-slow: $(VENV)/.installed-tests
	$(call tests,-m slow,slow)

test-all: test test-slow

# while you work: tests of what changed since the commit SINCE, three minutes at most
SINCE ?= HEAD
test-quick: $(VENV)/.installed-tests
	files=$$($(BIN)/python -m dataprep_assets_tests.tools.changed_tests --since $(SINCE)) && \
	  if [ -n "$$files" ]; then $(PYTEST) -m "not slow" $$files; else echo 'No test imports what changed'; fi

# keep what the reports say, and show the slowest tests
durations:
	$(BIN)/python -m dataprep_assets_tests.tools.durations $(wildcard $(REPORTS)/*.xml)

# Another Dagster beside all else that is installed, without hashes: `make test-dagster DAGSTER=1.13.5`, by default the oldest
# that the wheel allows; `DAGSTER=` (nothing) is the newest. Its libraries are versions 0.28.x where it is 1.12.x
DAGSTER ?= $(shell sed -n 's/^  "dagster>=\([0-9.]*\),.*/\1/p' pyproject.toml)
OTHER := build/dagster-$(or $(DAGSTER),newest)
LIBRARIES := $(shell echo $(DAGSTER) | awk -F. 'NF { print "==0." $$2 + 16 "." $$3 }')
# what a version of Dagster may change: definitions that load, runs and their checks, partitions, sensors, backfills, data
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

# The oldest versions that pyproject.toml allows of what the wheel itself requires, and pip's choice of the rest: the samples
# run with them, from a project of `dataprep init`
LOWEST := build/lowest
test-lowest:
	rm -rf $(LOWEST)
	$(PYTHON) -m venv $(LOWEST)
	$(PYTHON) -m dataprep_assets_tests.tools.lowest > $(LOWEST)/constraints.txt
	$(LOWEST)/bin/python -m pip install --quiet --disable-pip-version-check --no-compile -c $(LOWEST)/constraints.txt .
	$(LOWEST)/bin/python -m pip check
	cd $(LOWEST) && env -u PYTHONPATH bin/dataprep init project && cd project && for command in list "check sample_corpus" "run sample_corpus" \
	  "status sample_corpus" "show sample_corpus" verify; do ../bin/dataprep $$command || exit 1; done

# mypy alone takes as long as the others together, on one core; what each says stays together
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

# the site with search; nothing of it comes from the network. Not `--quiet`: it makes `--strict` accept everything
docs: $(VENV)/.installed-tests
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo 'build/site/index.html; with search: $(BIN)/python -m http.server --bind 127.0.0.1 --directory build/site 8000'

bench: $(VENV)/.installed-tests
	$(BIN)/python -m dataprep_assets_tests.tools.bench
	$(BIN)/python -m dataprep_assets_tests.tools.bench --languages
	$(BIN)/python -m dataprep_assets_tests.tools.bench.pretrain --only d,e,f,floor
	$(BIN)/python -m dataprep_assets_tests.tools.bench.whole_run
	$(BIN)/python -m dataprep_assets_tests.tools.bench.memory
# a target that is missed is an error of these; the others are measured all the same
	-$(BIN)/python -m dataprep_assets_tests.tools.bench.sft
	-$(BIN)/python -m dataprep_assets_tests.tools.bench.cohorts
	-$(BIN)/python -m dataprep_assets_tests.tools.bench.corpus_proofs

$(VENV)/.installed: pyproject.toml constraints.txt $(wildcard requirements/*.txt)
	$(PYTHON) -c 'import sys; sys.exit(0 if (3, 11) <= sys.version_info[:2] < (3, 14) else "Python 3.11 to 3.13 is needed: make PYTHON=python3.12 demo")'
	$(PYTHON) -m venv $(VENV)
ifneq ($(HASHED),)
# first what builds the rest: what pip would fetch to build with has no hashes
	$(PIP) --require-hashes --no-deps -r requirements/base.txt
	$(if $(EXTRAS),$(PIP) --require-hashes --no-deps --no-build-isolation $(call hashed,$(EXTRAS)))
	$(PIP) --no-deps --no-build-isolation -e .
else
	$(PIP) -c constraints.txt -e '.$(if $(EXTRAS),[$(EXTRAS)])'
endif
	touch $@

# The tests start hundreds of processes of Python, and most end soon after their imports. Looking for garbage among what
# these made took a fifth of their time, so all look as seldom as the `dataprep` command does
$(VENV)/.installed-tests: $(VENV)/.installed
ifneq ($(HASHED),)
	$(PIP) --require-hashes --no-deps --no-build-isolation $(call hashed,k8s$(comma)ray$(comma)dev$(READERS))
	$(if $(READERS),$(MAKE) --no-print-directory torch)
	$(MAKE) --no-print-directory candidate
else
	$(PIP) -c constraints.txt -e '.[$(if $(EXTRAS),$(EXTRAS)$(comma))k8s,ray,dev$(READERS)]'
# mosaicml-streaming declares older versions (NumPy) than it works with: pip would refuse it beside ours. What the others
# require is installed anyway, or is for other storage
	$(if $(READERS),$(PIP) -c constraints.txt --no-deps mosaicml-streaming trl accelerate \
		ai2-olmo-core bettermap cached-path dataclass-extensions)
	$(MAKE) --no-print-directory candidate
endif
	echo 'import gc; gc.set_threshold(400_000, 20, 20)' > \
	  "$$($(BIN)/python -c "import sysconfig; print(sysconfig.get_path('purelib'))")/seldom_collected.pth"
	touch $@

# tokenizers 1.0 before its release, apart, because transformers does not allow it yet: its interface is tested with it.
# What needs it is skipped where it is not there
candidate:
	-$(PIP) $(if $(HASHED),--require-hashes )--no-deps --upgrade --target build/tokenizers-next -r dataprep_assets_tests/tokenization/candidate.txt

# PyTorch: the file that pip wants of this machine's, in a folder alone, where its hash counts (given hashes, pip would prefer
# a file of the index to one for CPUs that lies beside); then what it wants for GPUs, if it does
torch:
	rm -rf build/torch
	$(BIN)/python -m pip download --quiet --disable-pip-version-check --no-deps -c constraints.txt -d build/torch torch
	PIP_FIND_LINKS=build/torch $(PIP) --require-hashes --no-deps --no-index -r requirements/torch.txt
	ls build/torch/*+cpu-*.whl >/dev/null 2>&1 || $(PIP) --require-hashes --no-deps -r requirements/torch-gpu.txt
	rm -rf build/torch

# with its tables, and its pools limited before the first run
$(DAGSTER_HOME)/dagster.yaml: deploy/local/dagster.yaml | $(VENV)/.installed
	mkdir -p -m 700 $(DAGSTER_HOME)
	cp $< $@
	$(BIN)/python -c 'from dataprep_assets import open_project; open_project().instance().__enter__()'

clean:
	rm -rf $(VENV) .dagster .dataprep

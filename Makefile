# `make run` from a fresh machine to a calibrated reply; `make test` to all tests; `make check` while working.
PYTHON ?= $(shell command -v python3.11 || command -v python3.12 || command -v python3.13 || echo python3)
PIP_FLAGS ?= --quiet --disable-pip-version-check
PY := .venv/bin/python
# The marks of tests that need more than .venv.
REAL := server or clients or benchmarks
# What needs torch, and is skipped where that isn't.
TORCH := tests/vllm tests/train tests/bench/test_lab_training.py
# Hundreds of tests start processes of their own, and a loaded machine may starve one of them. A test that
# fails twice in a row has failed; one that passed at the second try is named at the end.
AGAIN := --reruns 1 -raR

.DEFAULT_GOAL := check
.PHONY: check lint types quick clients test environments all-environments run run-once clean

# Proxy, bench and tests.
.venv/.made: pyproject.toml
	@echo "· making .venv (proxy, bench, tests)"
	@$(PYTHON) -m venv .venv
	@.venv/bin/pip install $(PIP_FLAGS) -e '.[bench,dev,otel]'
	@touch $@

# The CPU vLLM server; also what converts and trains the lab model. It takes minutes, so its big parts are shown.
.venv-vllm/.made: SHELL := bash
.venv-vllm/.made: .SHELLFLAGS := -o pipefail -c
.venv-vllm/.made: pyproject.toml
	@echo "· making .venv-vllm (vLLM for the CPU, about 4 GB)"
	@test $$(df -Pk . | awk 'NR == 2 {print $$4}') -ge 8000000 || \
	{ echo "error: $$PWD: less than 8 GB free; make room for .venv-vllm" >&2; exit 2; }
	@$(PYTHON) -m venv .venv-vllm
	@# Compiling all 23,000 modules takes a minute; those that are used are compiled when they are.
	@.venv-vllm/bin/pip install --no-compile --disable-pip-version-check --progress-bar off -e '.[serve,train,dev]' | \
	awk '/Downloading.*[0-9] MB|Installing/ { print "  " substr($$0, 1, 90); fflush() }'
	@# PyPI's builds of these do not match the CPU torch, and vLLM starts without them.
	@.venv-vllm/bin/pip uninstall $(PIP_FLAGS) -y torchvision torchaudio torchcodec
	@touch $@

# The third-party clients that tests/clients drives: the Python ones, and the npm one where there is npm.
.venv-clients/.made: tests/clients/requirements.txt
	@echo "· making .venv-clients (OpenAI SDK, LangChain, litellm; about 430 MB)"
	@$(PYTHON) -m venv .venv-clients
	@.venv-clients/bin/pip install $(PIP_FLAGS) -r $<
	@touch $@

tests/clients/node_modules/.made: tests/clients/package-lock.json
	@if command -v npm >/dev/null; then npm ci --silent --prefix tests/clients && touch $@; \
	else echo "· npm is missing: the tests of OpenAI's npm SDK and of axe-core will be skipped (Node.js 20 brings it)"; fi

clients: .venv-clients/.made tests/clients/node_modules/.made

# BFCL's own code, pinned, in an environment of its own (600 MB).
.venv-bfcl/.made: bench/data/bfcl_requirements.txt | .venv/.made
	@.venv/bin/bench setup bfcl
	@touch $@

# tau2-bench's own code, pinned, in an environment of its own (1.1 GB).
.venv-tau2/.made: bench/data/tau2_requirements.txt | .venv/.made
	@.venv/bin/bench setup tau2
	@touch $@

lint: .venv/.made
	@.venv/bin/ruff check .
	@.venv/bin/ruff format --check .

types: .venv/.made
	@.venv/bin/mypy

# Four at a time also on two cores: most of these wait more than they work.
quick: .venv/.made
	@$(PY) -m pytest -q -n 4 -m 'not (whole or $(REAL))'

check: lint types quick

# Everything, the real vLLM server and real clients included; what it starts it stops.
test: all-environments
	@$(PY) -m pytest -q -n 4 $(AGAIN) -m 'not ($(REAL))'
	@.venv-vllm/bin/python -m pytest -q $(AGAIN) $(TORCH)
	@$(PY) -m pytest -q $(AGAIN) -m '$(REAL)'

# Side by side, since pip uses one core.
environments:
	@$(MAKE) --silent --no-print-directory -j2 .venv/.made .venv-vllm/.made

all-environments:
	@$(MAKE) --silent --no-print-directory -j2 .venv-vllm/.made .venv/.made .venv-bfcl/.made .venv-tau2/.made clients

# The lab model behind vLLM, the proxy in front, two sample requests; ARGS="--port 8090" and the like.
run: environments
	@$(PY) -m bench.lab.run $(ARGS)

run-once: environments
	@$(PY) -m bench.lab.run --once $(ARGS)

# Grafana's dashboard from its code; Prometheus' configuration, rules and their unit tests.
.PHONY: dashboards rules
dashboards: .venv/.made
	@$(PY) -m deploy.dashboards

rules:
	@command -v promtool >/dev/null || { echo "error: promtool is missing (apt install prometheus)" >&2; exit 2; }
	@promtool check config deploy/prometheus/prometheus.yml
	@promtool test rules deploy/prometheus/tests/*.yaml

clean:
	rm -rf .venv* .cache dist tests/clients/node_modules

# The lab model from its data to its validation figures; docs/lab-model.md. Goes on where it was killed.
.PHONY: lab-model lab-publish
LAB_SEED ?= 0
LAB_WHEN2CALL ?=
LAB_ADAPTER := .cache/lab/train/adapter
lab-model: .venv-vllm/.made
	@.venv-vllm/bin/python -m bench.lab.checkpoint
	@.venv-vllm/bin/python -m bench.lab.data --seed $(LAB_SEED) $(if $(LAB_WHEN2CALL),--when2call $(LAB_WHEN2CALL))
	@.venv-vllm/bin/python -m bench.lab.train --seed $(LAB_SEED)
	@.venv-vllm/bin/python -m bench.lab.evaluate --adapter $(LAB_ADAPTER) --record $(LAB_ADAPTER)/record.json

# The one look at the test split, then adapter, record and card into bench/lab/adapter.
lab-publish: .venv-vllm/.made
	@-.venv-vllm/bin/python -m bench.lab.evaluate --split test --adapter $(LAB_ADAPTER) \
	    --record $(LAB_ADAPTER)/record.json $(if $(LAB_SERVER),--server $(LAB_SERVER))
	@.venv-vllm/bin/python -m bench.lab.publish --adapter $(LAB_ADAPTER)

# The paper's comparison: teachers, mixed SFT and students on the lab model; docs/training.md. Each goes on where it
# was killed, and one that is done is not trained again; LAB_JOBS of them at a time, each on one core.
.PHONY: lab lab-quick lab-ready lab-compare
LAB_COMPARED := .cache/lab/compared
LAB_QUICK := mixed-sft vanilla-0 union-0
LAB_STUDENTS := restore-first-0 placebo-0 soft-clamp-0 vanilla-1 union-1 soft-clamp-1 \
    logit-penalty-0 restore-all-0 hard-clip-0 global-reweight-0
LAB_JOBS ?= 2
lab_results = $(1:%=$(LAB_COMPARED)/%/result.json)
lab_side_by_side = @$(MAKE) --silent --no-print-directory -j$(LAB_JOBS) $(call lab_results,$(1))
lab_train = @OMP_NUM_THREADS=1 .venv/bin/bench train --data $(LAB_COMPARED)/data.jsonl --precision bf16 --rate 5e-4 \
    --max-prompt 128 --max-tokens 12 --rank 4 --steps 60 $(1) --out $(@D) 2>&1 | sed -u 's|^|$(notdir $(@D)): |'

$(LAB_COMPARED)/%: SHELL := bash
$(LAB_COMPARED)/%: .SHELLFLAGS := -o pipefail -c
# A student of another lab model is another student: bench train then says so.
$(call lab_results,tool-teacher $(LAB_QUICK) $(LAB_STUDENTS)): bench/lab/adapter/adapter_model.safetensors
$(LAB_COMPARED)/tool-teacher/result.json:
	$(call lab_train,--how sft --only tool --base .cache/lab/lab)

# It was never taught to call: it is made of the model before it learnt to.
$(LAB_COMPARED)/response-teacher/result.json:
	$(call lab_train,--how sft --only response --base .cache/lab/base)

$(LAB_COMPARED)/mixed-sft/result.json:
	$(call lab_train,--how sft --base .cache/lab/lab)

# A student's name is its intervention and its seed.
lab_seed = $(lastword $(subst -, ,$*))
$(LAB_COMPARED)/%/result.json: | $(call lab_results,tool-teacher response-teacher)
	$(call lab_train,--how $(*:%-$(lab_seed)=%) --seed $(lab_seed) \
	    --base .cache/lab/lab --tool-teacher $(LAB_COMPARED)/tool-teacher/adapter \
	    --response-teacher $(LAB_COMPARED)/response-teacher/adapter)

lab: lab-ready
	$(call lab_side_by_side,$(LAB_QUICK) $(LAB_STUDENTS))
	@$(MAKE) --silent --no-print-directory lab-compare

lab-quick: lab-ready
	$(call lab_side_by_side,$(LAB_QUICK))

lab-ready: .venv/.made .venv-vllm/.made .venv-bfcl/.made
	@.venv-vllm/bin/python -m bench.lab.merge >/dev/null
	@test -e .cache/lab/data/train.jsonl || .venv-vllm/bin/python -m bench.lab.data
	@$(PY) -m bench.train.lab --out $(LAB_COMPARED)/data.jsonl

# Audit, calibrate and compare what is trained so far; LAB_SOME="--limit 240" takes fewer decisions.
lab-compare: .venv/.made .venv-vllm/.made .venv-bfcl/.made
	@$(PY) -m bench.lab.compared $(LAB_SOME)

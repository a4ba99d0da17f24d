# The commands of chat-gateway; `make help` lists them.
SHELL := /bin/bash
export PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
LOCKS := deploy/locks
# What was compiled is kept, whatever the environment says: each of hundreds of processes would compile anew.
export PYTHONDONTWRITEBYTECODE =

.PHONY: help install extras run test test-fast test-deb test-image check metrics bench soak chaos chaos-all chaos-disk chaos-forgetful chaos-injected fuzz mutants screenshots docs deb lock clean
help: ## lists the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-14s %s\n", $$1, $$2}'

$(VENV)/.runtime: pyproject.toml $(LOCKS)/build.txt $(LOCKS)/runtime.txt
	@deploy/install-packages.sh $(VENV) $(LOCKS)/build.txt $(LOCKS)/runtime.txt .
	@touch $@

$(VENV)/.dev: $(VENV)/.runtime $(LOCKS)/dev.txt
	@deploy/install-packages.sh $(VENV) $(LOCKS)/dev.txt
	@touch $@

$(VENV)/.docs: $(VENV)/.runtime $(LOCKS)/docs.txt
	@deploy/install-packages.sh $(VENV) $(LOCKS)/docs.txt
	@touch $@

# Each of the processes of `make test` would rewrite the assertions of all tests for itself.
$(VENV)/.rewritten: $(VENV)/.dev
	@$(BIN)/python -m pytest --collect-only --ignore tests/gateway --ignore tests/system >/dev/null & \
	$(BIN)/python -m pytest --collect-only tests/gateway tests/system >/dev/null; wait
	@touch $@

# A service that may not write into this folder would compile the packages anew at each start.
install: $(VENV)/.runtime ## creates .venv with the locked dependencies
	@$(BIN)/python -m compileall -q gateway channels session durable

extras: $(VENV)/.runtime ## adds what MCP servers, the tool web_fetch, traces and PostgreSQL need
	@deploy/install-packages.sh $(VENV) $(LOCKS)/extras.txt

run: $(VENV)/.runtime ## runs the gateway with its embedded queue
	@exec $(BIN)/chat-gateway run

test: $(VENV)/.rewritten ## runs all tests but those of check, with a real RabbitMQ and a real Chromium
	@deploy/system-packages.sh rabbitmq-server postgresql chromium-headless-shell fonts-dejavu-core curl bubblewrap libseccomp2 openssl systemd zsh fish strace
	RABBITMQ_SCHEDULER_BIND_TYPE=u $(BIN)/python -m pytest -m "not chaos" --numprocesses 6 --dist worksteal --durations=15 --ignore tests/deploy/test_container.py --ignore tests/system/test_broker_cluster.py --ignore tests/hosts --ignore tests/docs --ignore tests/test_house_rules.py --ignore tests/test_patterns.py

test-deb: $(VENV)/.dev ## tries the Debian package with all of its packages, not only what is ours: needs root
	@deploy/system-packages.sh bubblewrap libseccomp2 systemd
	DEB_WHOLE=1 $(BIN)/python -m pytest tests/deploy/test_deb.py

test-image: $(VENV)/.dev ## builds the container image on a Debian made here and runs it: needs root and the network
	@deploy/system-packages.sh buildah podman crun debootstrap
	$(BIN)/python -m pytest tests/deploy/test_container.py

test-fast: $(VENV)/.dev ## the tests of the everyday loop: no broker, no daemons, no drawn examples
	$(BIN)/python -m pytest --numprocesses 4 --dist worksteal -m "not slow and not chaos" --ignore tests/docs --ignore tests/test_house_rules.py --ignore tests/test_patterns.py

check: $(VENV)/.dev ## ruff, mypy, import contracts, docs
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	$(BIN)/python -m pytest tests/test_house_rules.py tests/test_patterns.py tests/docs

bench: $(VENV)/.dev install ## measures against peers in one run
	@deploy/system-packages.sh rabbitmq-server postgresql chromium-headless-shell fonts-dejavu-core
	$(BIN)/python -m bench

metrics: $(VENV)/.dev ## counts the code base, and the functions that one message runs through
	@$(BIN)/python -m bench.size

soak: $(VENV)/.dev install ## a million turns over 10,000 chats: SOAK_TURNS=100000 for fewer
	@deploy/system-packages.sh rabbitmq-server
	$(BIN)/python -m bench soak

screenshots: $(VENV)/.dev ## takes the pictures of docs/ anew
	@deploy/system-packages.sh chromium-headless-shell fonts-dejavu-core
	$(BIN)/python -m tests.browser.screenshots

# All pages lie there as in the checkout, so that their links lead to the same; the navigation is that of docs/README.md.
WEB := build/web
docs: $(VENV)/.docs ## builds the documentation as a web site in site/; a broken link fails
	@rm -rf $(WEB) && mkdir -p $(WEB)/docs
	@cp -RL *.md LICENSE docs deploy systemd $(WEB)/docs/
	@awk '/^## / { group = $$2; print "[[project.nav]]" } \
	  sub(/^\| \[/, "\"") && sub(/\]\(/, "\" = \"docs/") && sub(/\.md\).*/, ".md\"") \
	  { gsub(/`|docs\/\.\.\//, ""); print "[[project.nav." group "]]\n" $$0 }' docs/README.md | cat zensical.toml - >$(WEB)/zensical.toml
	$(BIN)/zensical build --strict --config-file $(WEB)/zensical.toml
	@rm -rf site && mv $(WEB)/site site

deb: $(VENV)/.runtime ## builds a Debian package into dist/
	@deploy/system-packages.sh python3
	deploy/deb/build.sh $(BIN)/python dist

N ?= 200
BROKER ?= embedded
WORKERS ?= 0
chaos: $(VENV)/.runtime ## kills gateways N times while messages flow, then checks the guarantees: make chaos N=500 BROKER=rabbitmq WORKERS=3 SEED=7
	@if [ $(BROKER) = rabbitmq ]; then deploy/system-packages.sh rabbitmq-server; fi
	$(BIN)/python -m tests.chaos --kills $(N) --broker $(BROKER) --workers $(WORKERS) $(if $(SEED),--seed $(SEED))

chaos-all: $(VENV)/.dev ## all that `make test` leaves out: new examples for the properties, a kill at every step, broken lines, parted hosts, a node of three killed; then `make chaos` on both brokers
	@deploy/system-packages.sh rabbitmq-server
	HYPOTHESIS_PROFILE=new $(BIN)/python -m pytest -m hypothesis
	$(BIN)/python -m pytest -m chaos --numprocesses 2 --dist worksteal
	$(BIN)/python -m pytest tests/system/test_broker_cluster.py tests/hosts
	$(MAKE) --no-print-directory chaos
	$(MAKE) --no-print-directory chaos BROKER=rabbitmq WORKERS=3

SECONDS_EACH = $(if $(filter command line environment,$(origin SECONDS)),$(SECONDS),600)
fuzz: $(VENV)/.dev ## searches for input that crashes or hangs: make fuzz TARGET=markdown SECONDS=60 SEED=7 INPUT=file
	$(BIN)/python -m tests.fuzz $(if $(TARGET),--target $(TARGET)) --seconds $(SECONDS_EACH) $(if $(SEED),--seed $(SEED)) $(if $(INPUT),--input $(INPUT))

JOBS ?= 2
mutants: $(VENV)/.dev ## puts a fault at a time into the modules that decide; docs/mutants.md says which no test noticed: MODULE=journal AGAIN=1
	@deploy/system-packages.sh rabbitmq-server
	nice -n 10 $(BIN)/python -m tests.mutants --jobs $(JOBS) $(if $(MODULE),--module $(MODULE)) $(if $(AGAIN),--again)

CUTS ?= 70
INJECTED ?= 20
chaos-disk: $(VENV)/.dev ## cuts the power of a disk that forgets, then takes out each sync in turn: needs root and /dev/fuse, without them chaos-injected; CUTS=200
	@if $(BIN)/python -m tests.disk.mount; then $(MAKE) --no-print-directory chaos-forgetful; else $(MAKE) --no-print-directory chaos-injected; fi

chaos-forgetful: $(VENV)/.dev
	unshare --mount $(BIN)/python -m tests.disk.cuts --cuts $(CUTS)
	unshare --mount $(BIN)/python -m tests.disk.mutants

chaos-injected: $(VENV)/.dev ## has system calls of a gateway fail, or kill it, by strace -e inject: INJECTED=100
	@deploy/system-packages.sh strace
	$(BIN)/python -m tests.disk.injected --rounds $(INJECTED)

COMPILE := uv pip compile --quiet --upgrade --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-emit-find-links --no-header --no-annotate
lock: ## resolves the newest versions anew into deploy/locks (needs uv)
	printf "setuptools>=80\nsetuptools-scm>=9\n" | $(COMPILE) - --output-file $(LOCKS)/build.txt
	printf "uv\npip\n" | $(COMPILE) - --output-file $(LOCKS)/uv.txt
	$(COMPILE) pyproject.toml --output-file $(LOCKS)/runtime.txt
	$(COMPILE) pyproject.toml --extra mcp --extra otel --extra postgres --extra web-fetch --constraints $(LOCKS)/runtime.txt --output-file $(LOCKS)/extras.txt
	$(COMPILE) pyproject.toml --extra dev --constraints $(LOCKS)/extras.txt --output-file $(LOCKS)/dev.txt
	$(COMPILE) --group docs --constraints $(LOCKS)/dev.txt --output-file $(LOCKS)/docs.txt

clean: ## removes what the targets made
	rm -rf $(VENV) build site *.egg-info

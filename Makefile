# Development and CI tasks. `make` lists the targets.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory
export PATH := $(CURDIR)/.venv/bin:$(PATH)

venv := .venv/.made
# Files with an interpreter in the first line, tracked or new: $(call programs,sh$$) or $(call programs,python).
programs = $(shell git ls-files -co --exclude-standard ':!collections' ':!*.j2' | xargs -d '\n' awk 'FNR == 1 && /^\#!.*$(1)/ { print FILENAME } { nextfile }')

# Run a target and print its duration: $(call timed,target)
timed = echo "==> make $(1)"; began=$$SECONDS; \
	$(MAKE) $(1) || { echo "==> make $(1) FAILED after $$((SECONDS - began)) s" >&2; exit 1; }; \
	echo "==> make $(1) passed in $$((SECONDS - began)) s"

.PHONY: help
help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: demo
demo: lab-up ## Deploy verified endpoints to simulated GPU hosts (LAB_HOSTS=1 LAB_GPU=b200x8)
	ansible-playbook site.yml -i inventory/local
	@cat lab/demo.txt

.PHONY: test
test: $(venv) ## Run lint, sanity, host-unit, integration and check-docs-site while the lab is built, then unit and molecule
	@$(MAKE) --jobs=2 checks STEPS="lint sanity host-unit integration check-docs-site" lab-images
	@$(call timed,unit)
	@$(call timed,molecule)
	@echo "==> all passed"

.PHONY: checks
checks: $(venv) ## Run lint, unit and sanity
	@for step in $(or $(STEPS),lint unit sanity); do $(call timed,$$step); done

.PHONY: lint
lint: $(venv) ## Check style and types
	yamllint --strict .
	ansible-lint
	ruff check . $(call programs,python)
	ruff format --check . $(call programs,python)
	mypy
	shellcheck $(call programs,sh$$)
	antsibull-changelog lint
	codespell
	tools/words.sh

.PHONY: browser
browser: ## Install Chromium for the tests of HTML pages
	tools/browser.sh

.PHONY: promtool
promtool: ## Unpack promtool and amtool for the tests of role monitoring
	tools/promtool.sh

.PHONY: gpg
gpg: ## Check that gpg is installed, which signs releases, also those of unit tests
	@command -v gpg > /dev/null || { echo "gpg is not installed; releases are signed with it. Run: apt-get install gnupg." >&2; exit 1; }

.PHONY: unit
unit: $(venv) browser promtool gpg ## Run unit tests, and check that generated documents are current
	tools/inventories.sh
	pytest --numprocesses auto --maxprocesses 4 --dist loadfile

.PHONY: inventories
inventories: $(venv) ## Run the unit tests of inventory/dynamic, with Azure's packages too (850 MB)
	tools/inventories.sh azure
	pytest -vv tests/unit/test_dynamic_inventory.py

.PHONY: host-unit
host-unit: $(venv) ## Run unit tests of host code with ansible-test, on the oldest installed Python that hosts may have
	tools/ansible_test.sh units --venv --python oldest tests/unit/plugins/modules/ tests/unit/plugins/module_utils/

.PHONY: sanity
sanity: $(venv) ## Run ansible-test sanity on each installed Python that hosts may have
	tools/ansible_test.sh sanity

.PHONY: integration
integration: $(venv) ## Run the ansible-test targets of modules that need no lab
	tools/ansible_test.sh integration --venv --python default

.PHONY: molecule
molecule: $(venv) ## Run Molecule scenarios on lab hosts (SCENARIO="default air_gap")
	@for scenario in $(or $(SCENARIO),$(patsubst molecule/%/molecule.yml,%,$(wildcard molecule/*/molecule.yml))); do molecule test --scenario-name $$scenario; done

.PHONY: faults
faults: $(venv) ## Run end-to-end tests on lab hosts: check mode, faults, recovery, secrets (hours)
	pytest -vv tests/e2e $(addprefix --ignore tests/e2e/,test_rollout_faults.py test_rollout_load.py test_normal_life.py test_real_gpus.py test_real_gpu_fleet.py test_fresh_machine.py)

.PHONY: fresh-machines
fresh-machines: $(venv) ## Run README's quick start on fresh Debian 12 and 13, and Debian configured as Ubuntu 24.04 (15 min each)
	pytest -vv --capture=no tests/e2e/test_fresh_machine.py

.PHONY: faults-rollout
faults-rollout: $(venv) ## Test all faults at all moments of a rollout, write docs/test-results/rollout-faults.md (2 h)
	ROLLOUT_DOCUMENTS=docs/test-results pytest -vv --capture=no tests/e2e/test_rollout_faults.py

.PHONY: real-gpus
real-gpus: $(venv) ## Test the roles on this machine's GPUs, with an engine that is not TensorRT-LLM (LAB_MACHINE_PYTHON=/opt/venv/bin/python3)
	pytest -vv --capture=no tests/e2e/test_real_gpus.py tests/e2e/test_real_gpu_fleet.py

.PHONY: load-rollout
load-rollout: $(venv) ## Change image, recipe, model and Docker of six hosts under load, write docs/test-results/rollout-load.md (40 min)
	ROLLOUT_DOCUMENTS=docs/test-results pytest -vv --capture=no tests/e2e/test_rollout_load.py

.PHONY: shadow
shadow: $(venv) ## Judge planted defects on copies of live requests, write docs/test-results/shadow.md (26 min)
	ROLLOUT_DOCUMENTS=docs/test-results pytest -vv --capture=no tests/e2e/test_shadow.py

.PHONY: normal-life
normal-life: $(venv) ## Look for false alarms during a day of normal life, write docs/test-results/false-alarms.md (HOURS=24; 2 h)
	NORMAL_LIFE_HOURS=$(or $(HOURS),24) ROLLOUT_DOCUMENTS=docs/test-results pytest -vv --capture=no tests/e2e/test_normal_life.py

.PHONY: fuzz-gateway
fuzz-gateway: $(venv) ## Send random bodies to two gateways of the lab under load (MINUTES=10)
	GATEWAY_FUZZ_SECONDS=$$(($(or $(MINUTES),10) * 60)) pytest -vv --capture=no tests/e2e/test_gateway_models.py -k random

.PHONY: clients
clients: $(venv) ## Use each feature of the API by real clients through a gateway, write docs/test-results/clients.md (5 min)
	ROLLOUT_DOCUMENTS=docs/test-results pytest -vv --capture=no tests/e2e/test_clients.py

.PHONY: load-busy
load-busy: $(venv) ## Test busy and hung instances under twice their capacity, write docs/test-results/gateway-load.md (MINUTES=30)
	BUSY_LOAD_MINUTES=$(or $(MINUTES),30) ROLLOUT_DOCUMENTS=docs/test-results pytest -vv --capture=no tests/e2e/test_busy_load.py

.PHONY: bench-recipes
bench-recipes: $(venv) ## Measure the control node's CPU time for the recipes of a fleet (HOSTS=1000)
	PYTHONPATH=collections python -m tools.bench recipes --hosts $(or $(HOSTS),1000)

.PHONY: bench-hashing
bench-hashing: $(venv) ## Measure model verification beside sha256sum on all cores (FILES=15 SIZE=2, in GiB)
	PYTHONPATH=collections python -m tools.bench hashing --files $(or $(FILES),15) --size $(or $(SIZE),2)

.PHONY: bench-weights
bench-weights: $(venv) ## Measure model distribution to 1, 2, 4 and 8 hosts by hub, rsync and role model_weights (root; REPEAT=1)
	PYTHONPATH=collections python -m tools.bench weights --repeat $(or $(REPEAT),1)

.PHONY: bench-gateway
bench-gateway: $(venv) ## Measure the latency that gateways add, on a running lab (GATEWAYS="gpu3 gpu4" REQUESTS=1000 STREAMS=2000)
	PYTHONPATH=collections python -m tools.bench gateway --gateway $(or $(GATEWAYS),gpu3) --requests $(or $(REQUESTS),1000) --streams $(or $(STREAMS),2000)

.PHONY: bench-gateway-alone
bench-gateway-alone: $(venv) ## Measure what a gateway's configuration costs on this machine (DIRECTORY=copy of a gateway's HAPROXY=haproxy)
	PYTHONPATH=collections python -m tools.bench gateway_alone --haproxy $(or $(HAPROXY),haproxy) $(DIRECTORY)

.PHONY: bench-kv-transport
bench-kv-transport: $(venv) ## Measure the KV cache's transfer between two GPUs of this host, in containers (IMAGE=with-ucx_perftest ARGUMENTS=)
	PYTHONPATH=collections python -m tools.bench kv_transport $(ARGUMENTS) $(IMAGE)

.PHONY: bench-registration
bench-registration: $(venv) ## Measure host registration at a gateway, one by one and together, with a local HAProxy (HOSTS=100)
	PYTHONPATH=collections python -m tools.bench registration --hosts $(or $(HOSTS),100)

.PHONY: bench-affinity
bench-affinity: $(venv) ## Measure the benefit of gateway affinity, on a running lab (USERS=8)
	PYTHONPATH=collections python -m tools.bench affinity --users $(or $(USERS),8)

.PHONY: bench-fleet
bench-fleet: $(venv) ## Measure status.yml and a site.yml without changes beside plain SSH, on a running lab (REPEAT=3 MITOGEN=1)
	PYTHONPATH=collections python -m tools.bench fleet --repeat $(or $(REPEAT),3) $(if $(MITOGEN),--mitogen)

.PHONY: bench-cold
bench-cold: $(venv) ## Measure site.yml on bare lab hosts whose long legs have a known duration, beside the critical path (HOSTS=8)
	PYTHONPATH=collections python -m tools.bench cold --hosts $(or $(HOSTS),8)

.PHONY: bench-thousand
bench-thousand: $(venv) ## Measure the control node's cost of a fleet without changes, with recorded answers instead of hosts (HOSTS=1000)
	PYTHONPATH=collections python -m tools.bench thousand --hosts $(or $(HOSTS),1000)

.PHONY: check-statistics
check-statistics: $(venv) ## Simulate searches of tune.yml and gates of benchmark.yml, write docs/design/*-figures.md (5 min)
	PYTHONPATH=collections python -m tools.statistics

.PHONY: check-recipes
check-recipes: $(venv) ## Compare each default recipe with the best layout that NVIDIA's AIConfigurator predicts, without a GPU (30 to 60 min, 850 MB)
	PYTHONPATH=collections python -m tools.predict.check

.PHONY: disaggregated-sizing
disaggregated-sizing: $(venv) ## Compare disaggregated with aggregated serving by AIConfigurator, write its page (10 min, 850 MB)
	PYTHONPATH=collections python -m tools.predict.disaggregated

.PHONY: recommend
recommend: $(venv) ## Print the fewest hosts for a load (LOAD="--prompt 8192 --answer 1024 --user 30 --tokens 100000"; 5 min, 850 MB)
	PYTHONPATH=collections python -m tools.predict.recommend $(LOAD)

.PHONY: execution-environment
execution-environment: $(venv) ## Build an execution environment with this collection, image trtllm-fleet-ee (podman or docker)
	tools/execution_environment.sh

.PHONY: docs
docs: $(venv) ## Write the generated documents
	PYTHONPATH=collections python -m tools.docs

.PHONY: tour
tour: $(venv) browser ## Run the commands of docs/tour.md on lab hosts and write its pictures (10 min; with the components of Grafana, 650 MB)
	PYTHONPATH=collections python -m tools.tour

.PHONY: docs-site
docs-site: $(venv) ## Build the documentation site in .cache/docs-site/html (1 to 2 min)
	PYTHONPATH=collections python -m tools.docs_site

.PHONY: check-docs-site
check-docs-site: docs-site browser ## Build the documentation site, and test its links, its search and its look in a browser
	.cache/sphinx/bin/antsibull-docs lint-collection-docs --plugin-docs .
	pytest tests/docs_site

.PHONY: counts
counts: $(venv) ## Count size, indirection and words that the style guide replaces
	python tools/counts.py

.PHONY: locks
locks: $(venv) ## Write the locks of the Python programs that roles install
	python -m tools.lock

.PHONY: build
build: $(venv) ## Build the collection's tarball of the current commit in dist/, the same bytes each time
	python -m tools.build

.PHONY: galaxy
galaxy: $(venv) ## Check the tarball with galaxy-importer
	python -m tools.galaxy

.PHONY: release
release: $(venv) gpg ## Make a release in dist/ and tag it, without publishing it (VERSION=1.0.0 KEY=secret key of gpg)
	@python -m tools.release "$(VERSION)" --key "$(KEY)" --check
	@$(call timed,sanity)
	@$(call timed,galaxy)
	@$(call timed,check-docs-site)
	@python -m tools.release "$(VERSION)" --key "$(KEY)"

.PHONY: lab-images
lab-images: $(venv) ## Build the lab's images and start its origin, without hosts
	ansible-playbook lab/up.yml --extra-vars '{"lab_hosts": []}'

.PHONY: lab-up
lab-up: $(venv) ## Start the lab's hosts and its origin
	ansible-playbook lab/up.yml

.PHONY: lab-down
lab-down: $(venv) ## Stop the lab and keep its images
	ansible-playbook lab/down.yml

.PHONY: clean
clean: ## Remove the lab, its images and all build output
	@echo "Removing .lab with the lab's containers, images and network, .venv, .cache and caches of tools. Packages stay."
	@if [[ -d .lab ]]; then $(MAKE) $(venv) && ansible-playbook lab/down.yml -e lab_purge=true; fi
	rm -rf .venv .cache .ansible .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -prune -exec rm -rf {} +

.PHONY: venv
venv: $(venv) ## Create the Python environment .venv
$(venv): requirements.txt tools/venv.sh
	tools/venv.sh

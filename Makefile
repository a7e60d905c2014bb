# Everything that a person or a CI job does from a checkout. `make` lists it.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory
export PATH := $(CURDIR)/.venv/bin:$(PATH)

venv := .venv/.made
# Files whose first line names an interpreter, in the checkout as git would commit it: $(call programs,sh$$) or $(call programs,python).
programs = $(shell git ls-files -co --exclude-standard ':!collections' ':!*.j2' | xargs -d '\n' awk 'FNR == 1 && /^\#!.*$(1)/ { print FILENAME } { nextfile }')

# A target of this file, with how long it took: $(call timed,target)
timed = echo "==> make $(1)"; began=$$SECONDS; \
	$(MAKE) $(1) || { echo "==> make $(1) FAILED after $$((SECONDS - began)) s" >&2; exit 1; }; \
	echo "==> make $(1) passed in $$((SECONDS - began)) s"

.PHONY: help
help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: demo
demo: lab-up ## Simulated GPU hosts to verified endpoints (LAB_HOSTS=1, LAB_GPU=b200x8)
	ansible-playbook site.yml -i inventory/local

.PHONY: test
test: $(venv) ## lint and sanity while the lab is built, then unit and molecule
	@$(MAKE) --jobs=2 checks STEPS="lint sanity" lab-images
	@$(call timed,unit)
	@$(call timed,molecule)
	@echo "==> all passed"

.PHONY: checks
checks: $(venv) ## lint, unit, sanity
	@for step in $(or $(STEPS),lint unit sanity); do $(call timed,$$step); done

.PHONY: lint
lint: $(venv) ## Style and types of everything in the checkout
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
browser: ## Chromium, for the tests of pages
	tools/browser.sh

.PHONY: unit
unit: $(venv) browser ## Unit tests and the promises of the repo (docs and specs up to date)
	pytest

.PHONY: sanity
sanity: $(venv) ## ansible-test sanity, on every Python here that a host may have
	tools/ansible_test.sh sanity

.PHONY: integration
integration: $(venv) ## Run the ansible-test targets of modules that need no lab
	tools/ansible_test.sh integration --venv --python default

.PHONY: molecule
molecule: $(venv) ## The Molecule scenarios on lab hosts, one after the other (SCENARIO="default air_gap")
	@for scenario in $(or $(SCENARIO),$(patsubst molecule/%/molecule.yml,%,$(wildcard molecule/*/molecule.yml))); do molecule test --scenario-name $$scenario; done

.PHONY: faults
faults: $(venv) ## Dry run, faults, recovery and secrets on lab hosts (slow)
	pytest -vv tests/e2e $(addprefix --ignore tests/e2e/,test_rollout_faults.py test_rollout_load.py)

.PHONY: faults-rollout
faults-rollout: $(venv) ## Every fault at every moment of a rollout, into docs/test-results/rollout-faults.md (two hours)
	ROLLOUT_DOCUMENTS=docs/test-results pytest -vv --capture=no tests/e2e/test_rollout_faults.py

.PHONY: load-rollout
load-rollout: $(venv) ## Image, recipe, model and Docker of six hosts changed under 10,000 requests, into docs/test-results/rollout-load.md (40 minutes)
	ROLLOUT_DOCUMENTS=docs/test-results pytest -vv --capture=no tests/e2e/test_rollout_load.py

.PHONY: load-busy
load-busy: $(venv) ## Two instances under twice the load that they take, then one that hangs, into docs/test-results/gateway-load.md (MINUTES=30)
	BUSY_LOAD_MINUTES=$(or $(MINUTES),30) ROLLOUT_DOCUMENTS=docs/test-results pytest -vv --capture=no tests/e2e/test_busy_load.py

.PHONY: bench-recipes
bench-recipes: $(venv) ## CPU time of the controller for the recipes of a fleet (HOSTS=1000)
	PYTHONPATH=collections python -m tools.bench recipes --hosts $(or $(HOSTS),1000)

.PHONY: bench-hashing
bench-hashing: $(venv) ## Speed of verifying a model beside sha256sum on all cores (FILES=15 SIZE=2, in GiB)
	PYTHONPATH=collections python -m tools.bench hashing --files $(or $(FILES),15) --size $(or $(SIZE),2)

.PHONY: bench-weights
bench-weights: $(venv) ## A model on 1, 2, 4, 8 hosts: from the hub, with rsync, and ours (root; REPEAT=1)
	PYTHONPATH=collections python -m tools.bench weights --repeat $(or $(REPEAT),1)

.PHONY: bench-gateway
bench-gateway: $(venv) ## What gateways add to requests and to tokens, on a lab that stands (GATEWAYS="gpu3 gpu4" REQUESTS=1000 STREAMS=2000)
	PYTHONPATH=collections python -m tools.bench gateway --gateway $(or $(GATEWAYS),gpu3) --requests $(or $(REQUESTS),1000) --streams $(or $(STREAMS),2000)

.PHONY: bench-registration
bench-registration: $(venv) ## Hosts registered at a gateway one by one and all together, with a HAProxy of this machine (HOSTS=100)
	PYTHONPATH=collections python -m tools.bench registration --hosts $(or $(HOSTS),100)

.PHONY: bench-affinity
bench-affinity: $(venv) ## What prompts that are cached where they come to are worth, on a lab that stands (USERS=8)
	PYTHONPATH=collections python -m tools.bench affinity --users $(or $(USERS),8)

.PHONY: bench-fleet
bench-fleet: $(venv) ## status.yml and a site.yml without changes, beside bare SSH, on a lab that stands (REPEAT=3)
	PYTHONPATH=collections python -m tools.bench fleet --repeat $(or $(REPEAT),3)

.PHONY: docs
docs: $(venv) ## Write the documents that are generated from specs and data
	PYTHONPATH=collections python -m tools.docs

.PHONY: counts
counts: $(venv) ## Size, indirection and words off the style guide
	python tools/counts.py

.PHONY: locks
locks: $(venv) ## Write the locks with hashes of the Python programs that roles install
	python -m tools.lock

.PHONY: lab-images
lab-images: $(venv) ## Start the lab's internet, with all images, and no host
	ansible-playbook lab/up.yml --extra-vars '{"lab_hosts": []}'

.PHONY: lab-up
lab-up: $(venv) ## Start the lab's hosts and its internet
	ansible-playbook lab/up.yml

.PHONY: lab-down
lab-down: $(venv) ## Stop the lab, keep its images
	ansible-playbook lab/down.yml

.PHONY: clean
clean: ## Remove the lab, its images and everything that was made in the checkout
	@if [[ -d .lab ]]; then $(MAKE) $(venv) && ansible-playbook lab/down.yml -e lab_purge=true; fi
	rm -rf .venv .cache .ansible .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -prune -exec rm -rf {} +

.PHONY: venv
venv: $(venv) ## The Python environment, .venv
$(venv): requirements.txt tools/venv.sh
	tools/venv.sh

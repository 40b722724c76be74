# headrace. `make demo` and `make test` install what they need, and nothing twice.
#
#   make demo                       the whole pipeline at work (ACCESS_LOG=file: its lines; DROP=7: lose events; REPAIR=1: and repair it; KILL=1: kill a broker)
#   make up / down / status         start the site, stop it, show each unit
#   make check                      lint, and the tests that need Python alone: five and a half minutes
#   make test                       lint and every test, as CI (PYTEST="tests/broker -k front": only those)
#   make lint                       ruff, mypy, import-linter (`make style`: ruff alone)
#   make image                      the container image headrace (docs/containers.md); needs a Docker engine
#   make bench                      beside Apache Kafka, RabbitMQ, ActiveMQ (QUICK=1: twelve minutes; SINCE=commit: beside
#                                  an earlier commit's broker instead; docs/benchmarks.md)
#   make bench-hostile              how long honest clients wait while somebody attacks a broker (ROWS="halves groups": these attacks; JSON=file: figures)
#   make bench-restart              how long records wait while a datacenter restarts broker by broker (ROUNDS=3, RATE=500)
#   make bench-power-cuts           what acks=all is worth in a power cut of all brokers, beside Apache Kafka (CUTS=10, SEED=1)
#   make bench-load                 loads beside Spark's own Kafka connector (QUICK=1: ten minutes; JSON=file: figures)
#   make fuzz                       hostile bytes at every socket and file, beside an honest client (MINUTES=60, SEED=, TARGETS=)
#   make jepsen                     real faults: brokers killed, paused, cut off, without disk (FAULTS=100, SEED=, JSON=, KINDS="kill pause")
#   make simulate                   simulated datacenters under seeded faults (SEEDS=100 FROM=1; SEED=7: one, with its trace); also simulate-mutants
#   make soak                       an hour of clients, groups and topics that come and go: what grows (MINUTES=60, JSON=)
#   make drill                      failures planted, and the audit graded: exit code 1 unless nothing was missed or false (N=, COPIES=, SEED=, KINDS=, JSON=)
#   make bench-terraform            provisioning the demo's deployment by Terraform, timed
#   make bench-airflow              Airflow over PostgreSQL beside Airflow over SQLite: starts, memory, backfills
#   make docs                       all pages as a site in .headrace/site, with the reference made from the code; man pages, too
#   make terraform                  install the Terraform provider for `terraform init` (DIR=folder: for your HCL there, too)
#   make clean                      stop the site and remove its data; `make distclean` also removes what was installed
#   make requirements               compile requirements/*.txt again

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

# HDFS, Spark and HAProxy fail there, the first of them after minutes.
ifneq ($(words x$(CURDIR)),1)
$(error the path of this checkout has a space, with which HDFS, Spark and HAProxy do not work: move it away from "$(CURDIR)")
endif
ifneq ($(words x$(HEADRACE_HOME)),1)
$(error HEADRACE_HOME has a space, with which HDFS, Spark and HAProxy do not work: set it to another folder than "$(HEADRACE_HOME)")
endif

VENV := .venv
BIN := $(VENV)/bin
UV := $(BIN)/uv
# Airflow lives apart: its Spark provider brings pyspark-client, which overwrites files of pyspark.
AIRFLOW_VENV := .venv-airflow
# The Terraform provider, too: its library pins protobuf 5.
TERRAFORM_VENV := .venv-terraform
# mkdocs, too: nothing else here needs it.
DOCS_VENV := .venv-docs
# Four on two cores, because tests mostly wait: for sessions, JVMs, links. Two of them at most are with whole sites
# (tests/run_order.py).
TEST_PROCESSES ?= 4
HEADRACE_HOME ?= $(CURDIR)/.headrace
export HEADRACE_HOME
# Container images often set it. Then every process compiles its imports again, which doubles its start.
unexport PYTHONDONTWRITEBYTECODE
# The first Python that is new enough; `make PYTHON=/path/to/python3.12` overrides it.
PYTHON ?= $(shell for python in python3.11 python3.12 python3.13 python3; do \
	"$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo "$$python" && break; done)

.PHONY: help demo test check style rewritten lint image fuzz jepsen simulate simulate-mutants drill soak bench bench-smoke bench-page bench-hostile bench-restart bench-power-cuts bench-load bench-terraform bench-airflow docs up down status clean distclean requirements setup airflow terraform \
	java jars debian haproxy postgresql

help:
	@sed -n 's/^#   //p' Makefile

# Without Terraform the provider has no use.
TERRAFORM := $(if $(shell command -v terraform),terraform)

# Installs what is independent in parallel.
TOGETHER := @$(MAKE) -s -j2

demo:
	$(TOGETHER) setup airflow jars postgresql $(TERRAFORM)
	@$(BIN)/headrace demo $(if $(ACCESS_LOG),--access-log "$(ACCESS_LOG)") $(if $(DROP),--drop "$(DROP)") $(if $(KILL),--kill) $(if $(REPAIR),--repair)

up: postgresql
up status:
	$(TOGETHER) setup airflow jars
	@$(BIN)/headrace $@

down:
	@if [ -x $(BIN)/headrace ]; then $(BIN)/headrace down; else echo "nothing runs: headrace is not set up here"; fi

# Types and layers are among the tests (tests/test_lint.py): they take the time in which others wait.
test:
	$(TOGETHER) setup airflow $(TERRAFORM) jars debian style rewritten $(DOCS_VENV)/.installed
	@if $(BIN)/python containers/container_image.py --engine; then \
		$(MAKE) -s image || echo "without an image the tests in containers are skipped"; fi
	@$(BIN)/pytest -n $(TEST_PROCESSES) --dist loadscope --no-loadscope-reorder --cache-clear $(PYTEST) \
		|| { [ $$? -eq 1 ] && $(BIN)/python tests/second_run.py; }

# Once, while jars are fetched: else each of the test processes rewrites the assertions of all tests for itself.
rewritten: setup
	@$(BIN)/pytest --collect-only -q -n0 $(PYTEST) >/dev/null || true

# Without Java, so that a heavy test that tests/needs.py does not know fails.
check: lint
	@JAVA_HOME=/no-jvm-in-make-check $(BIN)/pytest -n 2 --dist loadscope --no-loadscope-reorder -m "not heavy" $(PYTEST)

style: setup
	@$(BIN)/ruff check --quiet . && echo "ruff check: clean"
	@$(BIN)/ruff format --quiet --check . && echo "ruff format: clean"

lint: style
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-cache | grep -e broken -e BROKEN -e '->'

fuzz: setup java
	@PYTHONPATH=tests $(BIN)/python -m fuzzing --minutes $(or $(MINUTES),5) $(if $(SEED),--seed $(SEED)) $(if $(TARGETS),--targets $(TARGETS))

# Three brokers and ZooKeeper under a seeded schedule of faults. As root on hosts of their own, whose links are cut, too.
jepsen: setup java
	@PYTHONPATH=tests:bench $(BIN)/python -m faults --faults $(or $(FAULTS),20) $(if $(SEED),--seed $(SEED)) $(if $(JSON),--json "$(JSON)") \
		$(if $(KINDS),--kinds $(KINDS)) $(if $(PAUSE),--pause-max $(PAUSE)) $(if $(REPLICAS),--replicas $(REPLICAS)) $(if $(ACKS_ALL),--acks-all $(ACKS_ALL)) $(if $(LOOPBACK),--loopback) $(if $(UNSUPERVISED),--unsupervised)

simulate: setup
	@PYTHONHASHSEED=0 PYTHONPATH=tests $(BIN)/python -m simulation.simulate $(if $(SEED),--seed $(SEED),--seeds $(or $(SEEDS),100) --first $(or $(FROM),1)) $(if $(TROUBLED_MS),--troubled-ms $(TROUBLED_MS))

simulate-mutants: setup
	@PYTHONHASHSEED=0 PYTHONPATH=tests $(BIN)/python -m simulation.simulate --mutants

# WITHOUT=marks turns a check of the audit off: the drill must then fail.
drill: setup java
	@PYTHONHASHSEED=0 PYTHONPATH=tests $(BIN)/python -m drill.drill --plants $(or $(N),10000) --copies $(or $(COPIES),6) $(if $(SEED),--seed $(SEED)) \
		$(if $(KINDS),--kinds "$(KINDS)") $(if $(JSON),--json "$(JSON)") $(if $(WITHOUT),--without $(WITHOUT))

image: setup java
	@$(call from_debian,mmdebstrap,which makes the root of the container image,there can be no image)
	@$(BIN)/python containers/container_image.py

bench: setup java
	@QUICK="$(QUICK)" JSON="$(JSON)" PLOTS="$(PLOTS)" PROFILE="$(PROFILE)" ROWS="$(ROWS)" SINCE="$(SINCE)" $(BIN)/python bench/compare.py

# A moment of each kind of row, without peers, so that the bench itself is tested.
bench-smoke: setup
	@SMOKE=1 $(BIN)/python bench/compare.py

# Writes the figures of docs/benchmarks.json into the pages that show them.
bench-page: setup
	@$(BIN)/python bench/pages.py

# How long others wait while somebody attacks a broker.
bench-hostile: setup java
	@SECONDS="$(SECONDS)" ROWS="$(ROWS)" JSON="$(JSON)" PYTHONPATH=tests:bench $(BIN)/python bench/hostile.py

# How long records wait while a datacenter restarts broker by broker.
bench-restart: setup java
	@RATE="$(RATE)" ROUNDS="$(ROUNDS)" JSON="$(JSON)" PYTHONPATH=tests:bench $(BIN)/python bench/rolling_restart.py

# What is lost of what was acknowledged when the power of all brokers fails.
bench-power-cuts: setup java
	@CUTS="$(CUTS)" SEED="$(SEED)" PEERS="$(PEERS)" JSON="$(JSON)" PYTHONPATH=tests:bench $(BIN)/python bench/power_cuts.py

# What is held by processes that stay while others come and go.
soak: setup java
	@MINUTES="$(MINUTES)" JSON="$(JSON)" PYTHONPATH=bench $(BIN)/python -m soak

bench-load: setup jars
	@QUICK="$(QUICK)" JSON="$(JSON)" $(BIN)/python bench/load.py

bench-terraform: setup airflow jars terraform
	@$(BIN)/python bench/provision.py

bench-airflow: setup airflow postgresql
	@$(BIN)/python bench/airflow_database.py

# The pages of docs/, README and the reference of the code go through a folder of their own: nothing generated is in docs/.
docs: setup $(DOCS_VENV)/.installed
	@PYTHONPATH=manual $(BIN)/python -m reference "$(HEADRACE_HOME)/docs"
	@NO_MKDOCS_2_WARNING=1 $(DOCS_VENV)/bin/mkdocs build --strict --config-file "$(HEADRACE_HOME)/docs/mkdocs.yml" --site-dir "$(HEADRACE_HOME)/site"
	@echo "the pages: $(HEADRACE_HOME)/site/index.html (to search them: $(BIN)/python -m http.server --bind 127.0.0.1 --directory $(HEADRACE_HOME)/site)"
	@echo "man pages: man -M $(HEADRACE_HOME)/docs/man headrace"

clean: down
	@if [ -d "$(HEADRACE_HOME)" ]; then \
		echo "removing the site's data in $(HEADRACE_HOME) (jars and site.yaml stay)"; \
		find "$(HEADRACE_HOME)" -mindepth 1 -maxdepth 1 ! -name jars ! -name site.yaml -exec rm -rf {} +; fi
	@rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache

distclean: clean
	@echo "removing $(VENV), $(AIRFLOW_VENV), $(TERRAFORM_VENV), $(DOCS_VENV) and the jars"
	@rm -rf $(VENV) $(AIRFLOW_VENV) $(TERRAFORM_VENV) $(DOCS_VENV) "$(HEADRACE_HOME)/jars"

# --- setting up ------------------------------------------------------------------------------------------------

# On a terminal uv shows what it downloads; in a log it is silent.
QUIET = $$([ -t 2 ] || echo -q)

setup: $(VENV)/.installed

$(VENV)/.installed: requirements/bootstrap.txt requirements/dev.txt pyproject.toml
	@if [ -z "$(PYTHON)" ]; then \
		echo "headrace needs Python 3.11 or newer, and found none. On Debian: apt-get install python3 python3-venv;" \
		     "elsewhere: make setup PYTHON=/path/to/python3.11" >&2; exit 1; fi
	@if [ -x $(BIN)/python ]; then echo "bringing $(VENV) up to date"; \
		else echo "setting up $(VENV) with $(PYTHON): Python packages, pinned with hashes (1.3 GB)"; fi
	@if ! [ -x $(BIN)/python ]; then $(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); \
		echo "$(PYTHON) cannot make virtual environments. On Debian: apt-get install python3-venv" >&2; exit 1; }; fi
	@# `uv pip sync` takes pip away, so pip is needed, and there, only the first time.
	@if ! [ -x $(UV) ]; then $(BIN)/python -m pip install -q --disable-pip-version-check \
		--require-hashes -r requirements/bootstrap.txt; fi
	@$(UV) pip sync $(QUIET) --python $(BIN)/python --require-hashes requirements/dev.txt
	@$(UV) pip install -q --python $(BIN)/python --no-deps --no-build-isolation -e .
	@touch $@

airflow: $(AIRFLOW_VENV)/.installed

$(AIRFLOW_VENV)/.installed: $(VENV)/.installed requirements/airflow.txt pyproject.toml
	@echo "setting up $(AIRFLOW_VENV): Airflow and its providers, pinned with hashes (about 630 MB)"
	@if ! [ -x $(AIRFLOW_VENV)/bin/python ]; then $(UV) venv -q --python $(BIN)/python $(AIRFLOW_VENV); fi
	@$(UV) pip sync $(QUIET) --python $(AIRFLOW_VENV)/bin/python --require-hashes requirements/airflow.txt
	@$(UV) pip install -q --python $(AIRFLOW_VENV)/bin/python --no-deps --no-build-isolation -e .
	@touch $@

# A filesystem mirror for Terraform, inside the environment, so that two checkouts on a machine do not share one. The
# examples and DIR find it through terraform.d/plugins, others through TF_CLI_CONFIG_FILE=$(TERRAFORM_VENV)/terraform.rc.
PLUGINS := $(CURDIR)/$(TERRAFORM_VENV)/plugins
terraform: $(TERRAFORM_VENV)/.installed
	@platform=$$(terraform version -json 2>/dev/null | sed -n 's/.*"platform": "\(.*\)".*/\1/p'); \
	if [ -n "$$platform" ]; then folder="$(PLUGINS)/headrace.local/headrace/headrace/0.1.0/$$platform"; mkdir -p "$$folder"; \
		install -C -m 755 terraform/terraform-provider-headrace "$$folder/terraform-provider-headrace_v0.1.0"; \
	else echo "there is no terraform on the PATH; the provider needs it (1.6 or newer)" >&2; fi
	@for folder in terraform/examples/*/ $(DIR); do if [ -d "$$folder" ]; then \
		mkdir -p "$$folder/terraform.d" && ln -sfn "$(PLUGINS)" "$$folder/terraform.d/plugins"; fi; done

$(TERRAFORM_VENV)/.installed: $(VENV)/.installed requirements/terraform.txt pyproject.toml
	@echo "setting up $(TERRAFORM_VENV): the Terraform provider, pinned with hashes (about 120 MB)"
	@if ! [ -x $(TERRAFORM_VENV)/bin/python ]; then $(UV) venv -q --python $(BIN)/python $(TERRAFORM_VENV); fi
	@$(UV) pip sync $(QUIET) --compile-bytecode --python $(TERRAFORM_VENV)/bin/python --require-hashes requirements/terraform.txt
	@$(UV) pip install -q --python $(TERRAFORM_VENV)/bin/python --no-deps --no-build-isolation -e .
	@printf 'provider_installation {\n  filesystem_mirror {\n    path    = "%s"\n    include = ["headrace.local/*/*"]\n  }\n  direct {\n    exclude = ["headrace.local/*/*"]\n  }\n}\n' \
		"$(PLUGINS)" >$(TERRAFORM_VENV)/terraform.rc
	@touch $@

$(DOCS_VENV)/.installed: $(VENV)/.installed requirements/docs.txt
	@echo "setting up $(DOCS_VENV): mkdocs, pinned with hashes (about 130 MB)"
	@if ! [ -x $(DOCS_VENV)/bin/python ]; then $(UV) venv -q --python $(BIN)/python $(DOCS_VENV); fi
	@$(UV) pip sync -q --python $(DOCS_VENV)/bin/python --require-hashes requirements/docs.txt
	@touch $@

java:
	@command -v javac >/dev/null || [ -n "$${JAVA_HOME:-}" ] || { \
		echo "headrace needs a Java 17 JDK (javac), and found none. On Debian: apt-get install openjdk-17-jdk-headless;" \
		     "elsewhere set JAVA_HOME" >&2; exit 1; }
	@found=$$($${JAVA_HOME:+"$$JAVA_HOME/bin/"}javac -version 2>&1 | sed -n 's/^javac \([0-9]*\).*/\1/p'); \
	if [ "$${found:-0}" -lt 17 ]; then \
		echo "headrace needs Java 17 or newer, and found $${found:-none}. Set JAVA_HOME to a newer JDK" >&2; exit 1; fi
	@command -v mvn >/dev/null || { \
		echo "headrace needs Maven (mvn) to fetch HDFS and Spark's Avro, and found none." \
		     "On Debian: apt-get install maven" >&2; exit 1; }

jars: setup java
	@$(BIN)/python -c "from headrace.warehouse.jars import ensure_jars; ensure_jars()"
	@$(BIN)/python -c "from headrace.warehouse.archive import ensure_archive; ensure_archive()"

debian: postgresql
	@$(call from_debian,kcat,for the tests with librdkafka's own tool,its tests are skipped)
	@$(call from_debian,librdkafka-dev,for the C client of the benchmarks,its tests are skipped,[ -f /usr/include/librdkafka/rdkafka.h ])

haproxy:
	@$(call from_debian,haproxy,which balances producers' connections,headrace's own balancer serves in its place)

# After haproxy, because two apt-get at once would not both get their lock.
postgresql: haproxy
	@$(call from_debian,postgresql,for Airflow's database,the wheel of it in $(AIRFLOW_VENV) serves in its place$(COMMA) except for root,ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1)

COMMA := ,

# Installs a Debian package. Arguments: its name, its purpose, what happens without it, how to see that it is there
# (by default: a program of its name). Starts no service.
define from_debian
if ! $(or $(4),PATH="$$PATH:/usr/sbin" command -v $(1) >/dev/null); then \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		echo "installing $(1) (Debian), $(2)"; \
		{ apt-get update -qq && RUNLEVEL=1 DEBIAN_FRONTEND=noninteractive apt-get install -y -qq $(1); } >/dev/null 2>&1 \
			|| echo "$(1) could not be installed: $(3)"; \
	else echo "$(1) is not installed: $(3) (as root: apt-get install $(1))"; fi; fi
endef

# --- pinning ---------------------------------------------------------------------------------------------------

COMPILE := $(UV) pip compile -q --python-version 3.11 --generate-hashes --no-emit-index-url --no-emit-find-links --no-annotate --no-header
requirements: setup
	$(COMPILE) pyproject.toml --extra warehouse --extra notebooks --extra fleet --extra postgresql --group dev -o requirements/dev.txt
	$(COMPILE) pyproject.toml --extra fleet --extra postgresql -c requirements/dev.txt -o requirements/image.txt
	$(COMPILE) pyproject.toml --extra airflow requirements/airflow.in -o requirements/airflow.txt
	$(COMPILE) requirements/terraform.in -o requirements/terraform.txt
	$(COMPILE) requirements/docs.in -o requirements/docs.txt

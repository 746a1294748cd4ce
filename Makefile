# Everything that one types in this project. Each target sets up what it needs; the second run sets up nothing.

SHELL := /bin/sh
BENCH_ARGS ?=
PYTEST_ARGS ?=
# Tests of one file stay in one process (more in tests/conftest.py); three processes for each core, since tests often wait.
WORKERS ?= $(shell expr 3 \* $$(nproc))
N ?= 200
SEED ?= 1
KINDS ?=
CUTS ?= 36
MINUTES ?= 30
SHARE ?= 0.7
FRAMES ?= 1000000
SEEDS ?= 1000
STREAMS ?= 50
BASE ?= HEAD~1
TARGET ?= bench
ROUNDS ?= 3
PROCESSES ?= 3
BIN := .venv/bin
# What the tests' many processes import is compiled once and not in each of them.
unexport PYTHONDONTWRITEBYTECODE
# Only what runs Spark asks for Java, and only when it runs.
WITH_JAVA = JAVA_HOME="$$(tools/java-home)" && export JAVA_HOME &&
ETCD = command -v etcd >/dev/null || tools/apt-install 'a cluster needs etcd' etcd-server

.PHONY: help dev demo test test-slow test-kafka test-clients test-prometheus test-helm test-docker test-console test-site test-cluster cluster-chaos bench-cluster bench-cluster-kafka chaos power-loss soak fuzz group-simulation classic-simulation transaction-simulation replication-simulation connections check fmt bench bench-flush bench-start bench-footprint bench-storage bench-spark bench-kafka bench-spark-kafka bench-compare walk test-spark-matrix spark-kills docs clean
.NOTPARALLEL:

help:
	@echo 'To try and use it:'
	@echo 'make demo       run the main job on real data, from produce to Spark'
	@echo 'make docs       the documentation as a site, in build/site; warnings are errors'
	@echo 'make clean      remove what the other targets made, except .venv'
	@echo 'To change it:'
	@echo 'make test       run the tests                    (PYTEST_ARGS=... passed to pytest)'
	@echo 'make test-slow  run the long ones: 200 kills of a broker under load'
	@echo 'make test-kafka run the tests in which Apache Kafka reads our files; fetches its jars by Maven'
	@echo 'make test-clients  clients and suites of Kafka from the registries; AIOKAFKA=DIR and LIBRDKAFKA=DIR add theirs'
	@echo 'make test-prometheus  the tests of alerts and dashboard with a real Prometheus, which it installs (Debian)'
	@echo 'make test-helm  the tests of the Helm chart, with a helm that it builds (Go)'
	@echo 'make test-docker  the image, built and run by a Docker engine; as root, needs docker and what the Dockerfile fetches'
	@echo 'make test-console  the tests of the console in a Chromium, which it installs (Debian)'
	@echo 'make test-site  the documentation in the same Chromium: what fits, what is drawn, what the search finds'
	@echo 'make test-cluster  the tests of several brokers and their etcd, which it installs (Debian)'
	@echo 'make cluster-chaos  N faults by chance against three brokers and their etcd, from SEED on (N=200 SEED=1 KINDS=kill,power,...)'
	@echo 'make bench-cluster  three brokers of a cluster beside one, how long failovers and refills take, and idle partitions'
	@echo 'make bench-cluster-kafka  three brokers beside three of Kafka; fetches its jars by Maven'
	@echo 'make chaos      N faults by chance against a busy broker, from SEED on (N=200 SEED=1 KINDS=kill,power,...)'
	@echo 'make power-loss CUTS power cuts under load: what of the page cache is lost, and what may be (CUTS=36 SEED=1)'
	@echo 'make soak       hold a share of the peak, and see what drifts; writes build/soak.json (MINUTES=30 SHARE=0.7)'
	@echo 'make fuzz       FRAMES mutated frames against a broker (FRAMES=1000000 SEED=1)'
	@echo 'make group-simulation  SEEDS sequences of 10,000 events against the machine of consumer groups (SEEDS=1000)'
	@echo 'make classic-simulation  SEEDS sequences of 10,000 events against the machine of classic groups (SEEDS=1000)'
	@echo 'make transaction-simulation  SEEDS sequences of 8,000 events against the machine of transactions (SEEDS=1000)'
	@echo 'make replication-simulation  SEEDS sequences of 2,000 events against the replicas of a partition (SEEDS=1000)'
	@echo 'make connections  4,000 connections held and served, 1,000 half-open ones cut, and what they cost'
	@echo 'make check      ruff, mypy --strict, import rules'
	@echo 'make fmt        format the code'
	@echo 'make bench      measure; writes build/bench.json (BENCH_ARGS=--quick for a first look)'
	@echo 'make bench-flush  measure group commit with 1 to 1,000 partitions; writes build/bench-flush.json (BENCH_ARGS as above)'
	@echo 'make bench-start  measure starts and stops with 10,000 segments; writes build/bench-start.json'
	@echo 'make spark-kills  kill drivers, executors, workers and the broker of STREAMS streams of Spark (STREAMS=50 SEED=1)'
	@echo 'make bench-footprint  the memory and descriptors of partitions, connections and committed offsets'
	@echo 'make test-spark-matrix  the tests of Spark with PySpark 4.0 to 4.3, each in an environment of its own'
	@echo 'make bench-spark  measure reading with Spark; writes build/bench-spark.json (BENCH_ARGS as above)'
	@echo 'make bench-spark-kafka  the same beside Kafka and its own connector, as far as that goes; fetches their jars by Maven'
	@echo 'make bench-kafka  Kafka'\''s perf producer against the listener of its clients, and against Kafka; fetches jars by Maven'
	@echo 'make bench-storage  measure the storage engine; writes build/bench-storage.json (BENCH_ARGS as above)'
	@echo 'make bench-compare  this tree'\''s benchmark against another commit and this one, in turns (BASE=COMMIT TARGET=bench ROUNDS=3)'
	@echo 'make walk       the functions that a produced batch, a fetched one and a commit of offsets go through'
	@echo 'make dev        only set up .venv'

dev:
	@tools/setup-python

demo: dev
	@$(WITH_JAVA) PYTHONPATH=examples $(BIN)/python -m demo

# Debian's package of etcd starts a service where systemd runs: there it is left to the developer, and its tests skip.
test: dev
	@tools/fuse
	@[ -d /run/systemd/system ] || $(ETCD) || true
	@$(WITH_JAVA) PYTHONPATH=tests $(BIN)/python -m spark.quick_start
	@$(WITH_JAVA) $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder -m "not slow" $(PYTEST_ARGS)

test-slow: dev
	@tools/fuse
	@$(WITH_JAVA) $(BIN)/python -m pytest -m slow $(PYTEST_ARGS)

test-kafka: dev
	@KAFKA_JARS="$$(tools/kafka-jars)" && CONNECTOR_JARS="$$(tools/kafka-jars connector)" && \
	export KAFKA_JARS CONNECTOR_JARS && $(WITH_JAVA) $(BIN)/python -m pytest -m slow tests/kafka \
		tests/spark/test_ported_job.py $(PYTEST_ARGS)

test-clients: dev
	@$(ETCD) || true
	@$(WITH_JAVA) WARMLOG_TEST_CLIENTS=1 $(BIN)/python -m pytest -m slow tests/clients $(PYTEST_ARGS)

test-prometheus: dev
	@tools/prometheus
	@$(BIN)/python -m pytest tests/integration/test_deploy_prometheus.py tests/integration/test_deploy_compose.py \
		tests/integration/test_metrics.py $(PYTEST_ARGS)

test-helm: dev
	@tools/helm
	@$(BIN)/python -m pytest tests/integration/test_deploy_helm.py $(PYTEST_ARGS)

test-docker: dev
	@docker info >/dev/null
	@$(BIN)/python -m pytest -m slow tests/integration/test_deploy_docker.py $(PYTEST_ARGS)

test-site: docs
	@command -v chromium >/dev/null || tools/apt-install 'the tests of the site need Chromium' chromium
	@$(BIN)/python -c 'import playwright' 2>/dev/null || \
		$(BIN)/python -m pip install --quiet --disable-pip-version-check --group console
	@$(BIN)/python -m pytest -m slow tests/docs/test_site_in_browser.py $(PYTEST_ARGS)

test-console: dev
	@command -v chromium >/dev/null || tools/apt-install 'the tests of the console need Chromium' chromium
	@$(BIN)/python -c 'import playwright, axe_playwright_python' 2>/dev/null || \
		$(BIN)/python -m pip install --quiet --disable-pip-version-check --group console
	@$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile -m slow tests/console $(PYTEST_ARGS)

test-cluster: dev
	@$(ETCD)
	@$(BIN)/python -m pytest -n 2 --dist loadfile -m "slow or not slow" tests/integration/etcd tests/cluster $(PYTEST_ARGS)

cluster-chaos: dev
	@tools/fuse
	@ETCD_BIN="$$(tools/etcd)" && $(WITH_JAVA) PATH="$$ETCD_BIN:$$PATH" PYTHONPATH=tests \
		$(BIN)/python -m cluster.chaos --faults $(N) --seed $(SEED) --kinds "$(KINDS)" --spark

bench-cluster: dev
	@$(ETCD)
	@PYTHONPATH=tests $(BIN)/python -m benchmarks.cluster $(BENCH_ARGS)

bench-cluster-kafka: dev
	@$(ETCD)
	@KAFKA_JARS="$$(tools/kafka-jars)" && export KAFKA_JARS && \
	$(WITH_JAVA) PYTHONPATH=tests $(BIN)/python -m benchmarks.kafka.cluster $(BENCH_ARGS)

chaos: dev
	@tools/fuse
	@PYTHONPATH=tests $(BIN)/python -m faults.history --faults $(N) --seed $(SEED) --kinds "$(KINDS)"

power-loss: dev
	@tools/fuse
	@PYTHONPATH=tests $(BIN)/python -m faults.losses --cuts $(CUTS) --seed $(SEED)

soak: dev
	@PYTHONPATH=tests $(BIN)/python -m faults.soak --minutes $(MINUTES) --share $(SHARE)

connections: dev
	@PYTHONPATH=tests $(BIN)/python -m faults.connections

fuzz: dev
	@PYTHONPATH=tests $(BIN)/python -m faults.fuzzing --frames $(FRAMES) --seed $(SEED)

check: dev
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/python -m mypy
	$(BIN)/lint-imports
	@$(BIN)/python tools/kafka-messages --check

docs: dev
	@$(BIN)/python -c 'import material, mkdocstrings' 2>/dev/null || \
		$(BIN)/python -m pip install --quiet --disable-pip-version-check --group docs
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet
	@echo 'the site is in build/site: begin with build/site/index.html'

fmt: dev
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

bench: dev
	@$(WITH_JAVA) PYTHONPATH=tests $(BIN)/python -m benchmarks $(BENCH_ARGS)

bench-flush: dev
	@PYTHONPATH=tests $(BIN)/python -m benchmarks.flush $(BENCH_ARGS)

bench-start: dev
	@PYTHONPATH=tests $(BIN)/python -m benchmarks.start $(BENCH_ARGS)

bench-footprint: dev
	@PYTHONPATH=tests $(BIN)/python -m benchmarks.footprint

bench-storage: dev
	@PYTHONPATH=tests $(BIN)/python -m benchmarks.storage $(BENCH_ARGS)

spark-kills: dev
	@$(WITH_JAVA) PYTHONPATH=tests $(BIN)/python -m spark.killed --streams $(STREAMS) --seed $(SEED)

test-spark-matrix: dev
	@tools/spark-matrix $(PYTEST_ARGS)

bench-spark: dev
	@$(WITH_JAVA) PYTHONPATH=tests $(BIN)/python -m benchmarks.spark $(BENCH_ARGS)

bench-compare: dev
	@PYTHONPATH=tests $(BIN)/python -m benchmarks.compare "$(BASE)" --target $(TARGET) \
		--processes $(PROCESSES) --rounds $(ROUNDS) --bench-args="$(BENCH_ARGS)"

walk: dev
	@PYTHONPATH=tests $(BIN)/python -m walk

bench-kafka: dev
	@KAFKA_JARS="$$(tools/kafka-jars)" && export KAFKA_JARS && \
	$(WITH_JAVA) PYTHONPATH=tests $(BIN)/python -m benchmarks.kafka $(BENCH_ARGS)

bench-spark-kafka: dev
	@KAFKA_JARS="$$(tools/kafka-jars)" && CONNECTOR_JARS="$$(tools/kafka-jars connector)" && \
	$(WITH_JAVA) PYTHONPATH=tests $(BIN)/python -m benchmarks.spark --kafka "$$KAFKA_JARS" "$$CONNECTOR_JARS" $(BENCH_ARGS)

group-simulation: dev
	@PYTHONPATH=tests $(BIN)/python -m unit.broker.coordinator.group.simulation --seeds $(SEEDS) --first $(SEED)

classic-simulation: dev
	@PYTHONPATH=tests $(BIN)/python -m unit.broker.coordinator.classic.simulation --seeds $(SEEDS) --first $(SEED)

transaction-simulation: dev
	@PYTHONPATH=tests $(BIN)/python -m unit.broker.coordinator.transaction.simulation --seeds $(SEEDS) --first $(SEED)

replication-simulation: dev
	@PYTHONPATH=tests $(BIN)/python -m unit.broker.replication.simulation --seeds $(SEEDS) --first $(SEED)

clean:
	rm -rf build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache spark-warehouse metastore_db derby.log
	find broker client protocol tests -name __pycache__ -prune -exec rm -rf {} +

# `go run ./cmd/holdfast serve` and `go test ./...` need none of this.

.PHONY: startup build test race race-journal interop console console-keys screenshots crash crash-cluster grow upgrade partition faults faults-cluster simulate abuse soak timers fuzz transfer bench compare lint release site

build: ## one static binary
	CGO_ENABLED=0 go build -trimpath -o holdfast ./cmd/holdfast

test:
	go test ./...

race: ## with the order of locks checked as well
	go test -race -tags lockrank ./...

race-journal: ## every case of the journal's simulations under the race detector, which "race" tries a quarter of
	go test -race -tags lockrank -count=1 -timeout 40m ./internal/journal ./internal/backup -all

interop: ## real SDKs and clients against the built binary; needs node and mosquitto-clients for all of it
	cd interop/mqttjs && npm ci --silent --no-audit --no-fund
	cd interop && go test ./...

console: ## the console in a headless Chromium; needs chromium, and npm for axe-core
	cd interop/console/axe && npm ci --silent --no-audit --no-fund
	cd interop/console && go test -count=1 ./...

console-keys: ## the console of a store with KEYS (1,000,000) keys
	cd interop/console && go test -count=1 -v -run TestStoreFullOfKeys . -keys $(or $(KEYS),1000000)

screenshots: ## those of docs/console, by the same browser
	cd interop/console && go test -count=1 -run TestScreenshots . -screenshots $(CURDIR)/docs/console

crash: ## hundreds of kill -9, with real clients on real sockets (docs/reliability.md)
	go run ./internal/crashtest/crash -rounds $(or $(ROUNDS),500)

crash-cluster: ## three nodes, whose leaders are killed ROUNDS (500) times, with followers, pauses and transfers between (docs/cluster.md)
	go run ./internal/crashtest/crash -cluster -rounds $(or $(ROUNDS),500)

grow: ## a cluster that grows from one node to three and five and shrinks again, CYCLES (10) times, under load (docs/cluster.md)
	go run ./internal/crashtest/crash -grow $(or $(CYCLES),10)

upgrade: ## three nodes of the former program FROM, a path, that get this one, one after the other, under load (docs/cluster.md)
	go run ./internal/crashtest/crash -from $(FROM)

partition: ## three nodes, between which links are cut ROUNDS (200) times; needs root, and iproute2 (docs/cluster.md)
	go test -count=1 ./internal/crashtest/partition
	@if [ "$$(id -u)" = 0 ] && command -v ip >/dev/null; then \
	  go run ./internal/crashtest/crash -partition -rounds $(or $(ROUNDS),200) -seed $(or $(SEED),0); \
	else echo "no partitions: make partition needs root on Linux, and iproute2"; fi

faults: ## a hundred thousand messages, each processed once, through every fault (docs/consistent-messaging.md)
	go run ./internal/faultrun/faults -messages $(or $(MESSAGES),100000)

faults-cluster: ## MESSAGES (20,000) messages, each processed once, while the leader of three nodes is killed and paused (docs/consistent-messaging.md)
	go run ./internal/faultrun/faults -cluster -messages $(or $(MESSAGES),20000)

abuse: ## attacks from outside, at full size, and what other clients notice (docs/reliability.md)
	go run ./internal/abuse/attack -flags "--max-memory 2GiB" -record docs/attacks.json -into docs/reliability.md -program "$$(git rev-parse --short HEAD)"

simulate: ## SEEDS simulated clusters (100,000), from the seed FIRST on, whose disks, networks and clocks fail
	go test ./internal/replica/consensus -run TestNothingAcknowledged -count=1 -timeout 0 -v -seeds $(or $(SEEDS),100000) -first-seed $(or $(FIRST),1)

soak: ## thousands of clients come and go for an hour, and what the process holds stays flat
	go run ./internal/soak/soak -for $(or $(SOAK),1h) -chart docs/performance/soak.svg

timers: ## TIMERS (1,000,000) timers that are due at once: heap, start, and how long other clients wait (docs/reliability.md)
	go test ./internal/soak -run TestTimersOnDisk -count=1 -v -timeout 0 -timers $(or $(TIMERS),1000000)

compare: ## Holdfast beside other servers, in under 15 minutes, into docs/performance
	go run -C bench/compare .

release: ## archives, packages and checksums of VERSION, into dist (docs/installing.md)
	go run -C deploy/release . -version $(or $(VERSION),v0.0.0) -out $(CURDIR)/dist

site: ## the pages as a static site with search, in deploy/site/dist; needs npm
	cd deploy/site && npm ci --silent --no-audit --no-fund && npm run build

fuzz: ## every fuzz target for FUZZTIME each
	./fuzz.sh $(or $(FUZZTIME),1m)

transfer: ## how long KEYS (1,000,000) keys take in and out, and from Redis (docs/moving.md); needs redis-server
	./transfer.sh $(or $(KEYS),1000000)

bench:
	go test -run '^$$' -bench . -benchmem ./...

startup: ## how long a start takes with a million keys, and with a million queued messages
	go test -run '^$$' -bench Start -benchtime 3x ./internal/server

lint:
	gofmt -l .
	go vet ./...
	go tool staticcheck ./...

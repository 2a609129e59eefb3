# make demo: see it share a device. make test: everything that must pass. make bench: against its peers.
# make lab: the papers' claims that take seconds. make results: all of them on ten seeds, the band and the ablations, into docs/.
# make package: the Debian package of the daemon.
.PHONY: demo test bench lab results package build fmt clean

demo:
	@tests/setup demo && tests/demo --strict

test:
	@tests/run

bench: build
	bench/nbd-peers
	bench/kernel-bfq
	bench/d2fq
	bench/operate
	bench/kyber-nass
	bench/busy-host
	bench/isolation -n 1
	bench/clients/run
	bench/elevators -n 3
	bench/oracle
	cargo bench -p fairq-core
	cargo bench -p fairq-host --bench controller
	cargo bench -p fairq-device
	cargo bench -p fairq-sim

lab:
	@tests/run build lab

results: build
	$${CARGO_TARGET_DIR:-target}/release/fairq lab run all --seed 1 --seeds 10 --band --ablations --output docs

package: build
	contrib/debian/package

build:
	cargo build --release --locked -p fairq

fmt:
	cargo fmt --all

clean:
	cargo clean

# make demo: see it share a device. make test: everything that must pass. make bench: the figures of docs/PERFORMANCE.md.
# make lab: the papers' claims that take seconds. make results: all of them on ten seeds, the band and the ablations, into docs/.
# make package: the Debian package of the daemon.
.PHONY: demo test bench lab results package build fmt clean

demo:
	@tests/setup demo && tests/demo --strict

test:
	@tests/run

# Each program records its bars and writes docs/PERFORMANCE.md. One that cannot run here does not
# stop the others.
bench: build
	cargo build --release --locked -p fairq-host --example nbd_floor
	-bench/nbd-peers --floor
	-bench/vhost-user/run
	-bench/ublk
	-bench/kernel-bfq
	-bench/shares
	-bench/depth
	-bench/d2fq
	-bench/operate
	-bench/operate -t 64
	-bench/control
	-bench/kyber-nass
	-bench/busy-host
	-bench/busy-host --policy mqfq --prefix "nice -n -10"
	-bench/busy-host --policy mqfq --prefix "chrt -r 10"
	-bench/isolation -n 1
	-bench/clients/run
	-bench/elevators -n 3
	-bench/oracle
	-bench/schedulers
	-cargo bench -p fairq-sim --bench coherence

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

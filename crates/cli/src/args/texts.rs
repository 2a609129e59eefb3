//! What stands at the end of each help: examples, units and the exit status.

pub(super) const EXIT_STATUS: &str = "Exit status: 0 when all went well, 1 when something failed \
 while running, 2 when the command \
line or the configuration cannot be used.";

pub(super) const UNITS: &str = "Sizes are in bytes or binary units (4k = 4096, 64KiB, 10G), \
 bandwidths likewise (1G/s); counts are \
decimal (100k = 100000); durations need their unit (80us, 1ms, 10s).";

#[cfg(feature = "lab")]
pub(super) fn lab_examples() -> String {
    format!(
        "\
Examples:
  fairq lab list
  fairq lab run M-5a M-T1
  fairq lab run --paper mqfq --json
  fairq lab run all --jobs 2 --output docs
  fairq lab run my.toml --policy all
  fairq lab run all --shard 1/2 --output part1; fairq lab merge part1 part2 --output whole

{EXIT_STATUS}"
    )
}

pub(super) fn serve_examples() -> String {
    format!(
        "\
Examples:
  fairq serve
  fairq serve --device file,path=/srv/disk.img,size=64G,create --tenant db=10G,weight=300 --tenant \
  web,weight=100
  fairq serve --device /dev/nvme1n1 --tenant db=100G,weight=300 --tenant web=100G --policy \
  mqfq:slots=64
  fairq serve --tenant db,weight=300,path=/srv/db.img --tenant web,path=/srv/web.img --listen \
  tcp:0.0.0.0
  fairq serve --config fairq.toml --policy none

{UNITS}

{EXIT_STATUS}"
    )
}

pub(super) fn ctl_examples() -> String {
    format!(
        "\
Examples:
  fairq ctl status
  fairq ctl tenants --json
  fairq ctl add web=10G,weight=200
  fairq ctl weight web 400
  fairq ctl weight db cgroup:/tenants/db
  fairq ctl params threshold=128k
  fairq ctl config reload
  fairq ctl trace --seconds 1 --format perfetto -o trace.json
  fairq ctl --control /run/other.ctl drain

{EXIT_STATUS}"
    )
}

#[cfg(feature = "top")]
pub(super) fn top_examples() -> String {
    format!(
        "\
Examples:
  fairq top
  fairq top --once
  fairq top --control /run/other.ctl --json

{EXIT_STATUS}"
    )
}

pub(super) fn bench_examples() -> String {
    format!(
        "\
Examples:
  fairq bench --policy none,mqfq --tenant small=weight:300,bs:4k,depth:64 --tenant \
  large=bs:64k,depth:32
  fairq bench --device ram --tenant a=depth:128,jobs:4 --tenant b=rw:randwrite,rate:100M/s --json
  fairq bench --device file,path=/srv/test.img,size=1G,create --overwrite --alone --fio tenants.fio
  fairq bench --device nvme-soft,backing=ram --policy none,d2fq --path direct --tenant a=depth:1
  fairq bench --seconds 30 --series 10ms --moves --tenant base --tenant \
  guest=weight:300,start:10s,stop:20s
  fairq bench --connect 'nbd+unix:///?socket=/run/fairq.sock' --tenant gold=depth:64 --tenant \
  silver=depth:64

A tenant is NAME=key:value,…
  weight  1 to 10000 (100)        bs     size of a request (4k)
  latency what its requests are to take, with latency-percentile (99), floor (50%); urgent (d2fq)
  depth   in flight, each job (32)  jobs   how many run at once (1)
  rw      read, write, randread, randwrite, rw, randrw (randread)
  rwmix   percentage of reads (50)  size   how much it touches (an equal part)
  rate    bytes a second, at most   iops   requests a second, at most
  think   pause after each request  start, stop  when it comes and goes, from the start of the \
  measurement

{UNITS}

{EXIT_STATUS}"
    )
}

pub(super) fn calibrate_examples() -> String {
    format!(
        "\
Examples:
  fairq calibrate --device /dev/nvme1n1
  fairq calibrate --device paced,iops=200k,latency=100us --bs 4k --json

It only reads unless --write is given.

{EXIT_STATUS}"
    )
}

pub(super) fn device_examples() -> String {
    format!(
        "\
Examples:
  fairq device list
  fairq device show z-ssd
  fairq device show z-ssd --toml > mine.toml
  fairq device probe /dev/nvme1n1 --output mine.toml
  fairq device probe /srv --size 4G --output srv.toml
  fairq device probe /dev/nvme1n1 --overwrite --json
  fairq device probe nvme-soft,backing=ram,profile=z-ssd

It writes only into a scratch file of its own, unless --overwrite is given.

{UNITS}

{EXIT_STATUS}"
    )
}

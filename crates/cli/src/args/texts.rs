//! The end of each help: examples, units and the exit status.

use fairq_config::flags::{EXIT_STATUS, UNITS};

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
  fairq serve --device ram,size=1G --tenant a --run 'nbdinfo \"$uri\"'

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
  fairq top --kernel nvme0n1

{EXIT_STATUS}"
    )
}

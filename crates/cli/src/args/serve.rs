//! `fairq serve`.
// Doc comments here are help texts, in which [brackets] mean optional.
#![allow(rustdoc::broken_intra_doc_links)]

use std::path::PathBuf;

use clap::Args;
use fairq_config::device::DeviceTable;
use fairq_config::flags::ShardArgs;
use fairq_config::group::GroupTable;
use fairq_config::listen::Listen;
use fairq_config::policy::PolicyTable;
use fairq_config::poll::Poll;
use fairq_config::settings::{LimitsTable, Settings, TlsMode, TlsTable};
use fairq_config::tenant::TenantTable;
use fairq_config::timeouts::TimeoutsTable;
use fairq_config::units::Size;
use fairq_host::server::handover::Predecessor;
use toml::Spanned;

/// `fairq serve`.
#[derive(Debug, Args, Default)]
pub(crate) struct ServeArgs {
    /// Read this TOML file first; flags override it
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// The store: null | ram | paced | file | nvme-soft, then keys
    ///
    /// Keys: size (null, ram, paced; 4G); iops, bandwidth, latency, parallelism (paced); path,
    /// create (make the file, with its size, if it does not exist), direct=auto|on|off (file). A
    /// path without a kind is a file. nvme-soft, a software controller with weighted round robin:
    /// backing=ram|null|PATH, size, profile=z-ssd|FILE|none, state=fresh|steady, slowdown (a
    /// factor for the profile's times), window, queues,
    /// wrr=true|false, poller=inline|core.
    #[arg(long, value_name = "KIND[,KEY=VALUE…]")]
    pub(crate) device: Option<DeviceTable>,
    /// A tenant; may be given many times
    ///
    /// Keys: size (default: an equal part of the free space), weight=1..10000 (100) or
    /// cgroup:/NAME, offset, path=FILE (a file of its own), create (make that file), store=NAME
    /// (tenants of one store share a scheduler, and their weights are compared; default: one store
    /// for all files on the same device), keep-data (do not zero the range of a tenant that is
    /// added to a running server), read-only, urgent (d2fq), latency=200us (the target for its
    /// requests; all policies with slots), latency-percentile (99), floor=50% (the part of their
    /// shares that others keep), max-iops and max-bandwidth (caps; also with read- or write- before
    /// them), burst=100ms (how much it may exceed a cap at once: a time, or a number of requests),
    /// min-iops and min-bandwidth (the reserved rate, as far as the device can give it), group=NAME
    /// (a group of tenants; see --group), identity=NAME (the name in the client's certificate; any
    /// accepts every certificate), uid=N, user=NAME and unix-group=NAME (the users who may open it
    /// over a Unix socket; several as in a+b), connections (the most at a time; default: half of
    /// all), vhost-user=PATH and vfio-user=PATH (sockets where a guest attaches it, as a virtio
    /// disk and as an NVMe controller), ublk (a block device of this machine), description. Write a
    /// comma in a value twice.
    #[arg(long, value_name = "NAME[=SIZE][,KEY=VALUE…]")]
    pub(crate) tenant: Vec<TenantTable>,
    /// A group of tenants, which share its weight and limits; may be given many times
    ///
    /// NAME is the group's name, after the names of its outer groups: acme/batch. Keys:
    /// weight=1..10000 (100) beside the tenants and groups in the same group, min-iops and
    /// min-bandwidth (reserved for its tenants together), max-iops, max-bandwidth, also with read-
    /// or write- before them, burst (the caps of its tenants together), latency,
    /// latency-percentile, floor (the target of each tenant in it that has none of its own),
    /// cgroup=/NAME (weight and caps follow that cgroup's io.weight and io.max). The key group=NAME
    /// of a tenant puts it into the group.
    #[arg(long, value_name = "NAME[,KEY=VALUE…]")]
    pub(crate) group: Vec<GroupTable>,
    /// The policy: none | sfqd | mqfq | mqfq-serial | d2fq | kyber | kyber-fair | cfq | cfq-na |
    /// bfq | bfq-na | flashfq | fiops, or nass+ and one of cfq, bfq, flashfq, fiops, mqfq; then
    /// keys
    ///
    /// Keys: slots (or D: the most requests outstanding on the device), threshold (or T: the
    /// distance, in bytes, by which the tenant with the least weight may be ahead of virtual time),
    /// read-cost, write-cost (factors), least-cost (bytes that any request costs at least),
    /// cost=bytes|requests|device (the resource that is shared; default: the device's time with
    /// mqfq, mqfq-serial and sfqd, else bytes); all except none, mqfq and d2fq: merge=on|off|SIZE
    /// (adjacent requests as one command); d2fq: tau-l, tau-m, tau-w (bytes), hl=dynamic|static-N,
    /// initial, period, grace, urgent; cfq: slice, target, quantum, idle; bfq: budget, timeout,
    /// idle, wait-for-equals, sync-writes; flashfq: idle, request-cost; nass: channels,
    /// sub-request, history, decay, reserve, queue-length, aggressiveness, sequentiality, idleness;
    /// kyber: read-target, write-target, discard-target, read-depth, write-depth, discard-depth,
    /// other-depth; kyber-fair: period, busy, patience, tokens.
    #[arg(long, value_name = "NAME[:KEY=VALUE…]")]
    pub(crate) policy: Option<PolicyTable>,
    /// An address for clients: unix:PATH or tcp:ADDRESS[:PORT]; or for guests' disks:
    /// vhost-user:DIRECTORY, with a socket NAME.sock for each tenant, and vfio-user:DIRECTORY, with
    /// an NVMe controller NAME/cntrl; ublk makes each tenant a block device of this machine,
    /// /dev/fairq/NAME; may be given many times. As the only address, without tenants and without a
    /// policy: vfio-user-device:DIRECTORY, one NVMe controller cntrl over the whole device
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) listen: Vec<Listen>,
    /// The control socket, for `fairq ctl` and `fairq top` [default: beside the default socket, if
    /// that is used]
    #[arg(long, value_name = "PATH")]
    pub(crate) control: Option<PathBuf>,
    /// An address for the metrics for Prometheus and the web page, unix:PATH or tcp:ADDRESS:PORT;
    /// may be given many times
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) metrics: Vec<Listen>,
    /// A host name with which clients may reach the HTTP addresses, in addition to the addresses
    /// and localhost; may be given many times
    #[arg(long, value_name = "NAME")]
    pub(crate) metrics_host: Vec<String>,
    /// Serve the one connection on standard input, then end (inetd)
    #[arg(long)]
    pub(crate) stdio: bool,
    /// Run this command (by /bin/sh) while the server serves; the server ends when the command
    /// ends, with its exit status
    ///
    /// In the command, $uri is the URI of the first tenant, $unixsocket the Unix socket, and
    /// $control the control socket. Without --listen and --control both sockets are in a folder of
    /// their own, so that many such servers can run at the same time.
    #[arg(long, value_name = "COMMAND", conflicts_with = "stdio")]
    pub(crate) run: Option<String>,
    /// The shards, and their CPUs
    #[command(flatten)]
    pub(crate) shards: ShardArgs,
    /// The times at which shards without work poll the queues of guests (vhost-user, vfio-user)
    /// instead of sleeping [default: auto]
    #[arg(long, value_name = "WHEN")]
    pub(crate) poll: Option<Poll>,
    /// Whether clients use TLS; required once there is a certificate
    #[arg(long, value_name = "MODE")]
    pub(crate) tls: Option<TlsMode>,
    /// The server's certificate chain, PEM
    #[arg(long, value_name = "FILE")]
    pub(crate) tls_cert: Option<PathBuf>,
    /// The certificate's private key, PEM
    #[arg(long, value_name = "FILE")]
    pub(crate) tls_key: Option<PathBuf>,
    /// The authority that signs clients' certificates, PEM; clients must then show one
    #[arg(long, value_name = "FILE")]
    pub(crate) tls_client_ca: Option<PathBuf>,
    /// Certificates that the authority has revoked, PEM (X509 CRL)
    #[arg(long, value_name = "FILE")]
    pub(crate) tls_client_crl: Option<PathBuf>,
    /// The most connections at a time [default: 256]
    #[arg(long, value_name = "N")]
    pub(crate) connections: Option<u32>,
    /// The most memory for requests and replies of all connections [default: half of what the
    /// machine, or the service (MemoryMax=), has]
    #[arg(long, value_name = "SIZE")]
    pub(crate) memory: Option<Size>,
    /// The most memory for requests and replies of one connection [default: 40M]
    #[arg(long, value_name = "SIZE")]
    pub(crate) memory_per_connection: Option<Size>,
    /// The most requests in flight of one connection [default: 512]
    #[arg(long, value_name = "N")]
    pub(crate) depth_per_connection: Option<u32>,
    /// The most queues of all guests (vhost-user, vfio-user) and block devices (ublk) [default: 64]
    #[arg(long, value_name = "N")]
    pub(crate) guest_queues: Option<u32>,
    /// Print the status each second even if standard output is not a terminal
    #[arg(long)]
    pub(crate) status: bool,
    /// Check whether this program could continue with the state on standard input; see `ctl
    /// upgrade`
    #[arg(long, hide = true)]
    pub(crate) check_upgrade: bool,
    /// Continue the server of the previous program in this process
    #[arg(long, hide = true, value_name = "PROGRAM:STATE")]
    pub(crate) take_over: Option<Predecessor>,
    /// The reason why the next program could not continue
    #[arg(long, hide = true, value_name = "REASON")]
    pub(crate) after_failure: Option<String>,
}

impl ServeArgs {
    /// The flags in the form of a file.
    pub(crate) fn settings(self) -> Settings {
        let flag = |given: bool| given.then_some(true);
        Settings {
            device: self.device,
            policy: self.policy,
            tenant: self.tenant.into_iter().map(|tenant| Spanned::new(0..0, tenant)).collect(),
            default_tenant: None,
            group: self.group.into_iter().map(|group| Spanned::new(0..0, group)).collect(),
            listen: self.listen,
            control: self.control,
            metrics: self.metrics,
            metrics_host: self.metrics_host,
            web_token: None,
            cgroup_root: None,
            stdio: flag(self.stdio),
            shards: self.shards.shards,
            cpus: self.shards.cpus,
            poll: self.poll,
            tls: TlsTable {
                mode: self.tls,
                cert: self.tls_cert,
                key: self.tls_key,
                client_ca: self.tls_client_ca,
                client_crl: self.tls_client_crl,
            },
            limits: LimitsTable {
                connections: self.connections,
                memory: self.memory,
                memory_per_connection: self.memory_per_connection,
                depth_per_connection: self.depth_per_connection,
                guest_queues: self.guest_queues,
            },
            timeouts: TimeoutsTable::default(),
            status: flag(self.status),
            log: None,
        }
    }
}

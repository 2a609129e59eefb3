//! The configuration as a whole: file, flags, defaults, and refusals.

use super::*;
use crate::device::FileConfig;

/// Two CPUs, and sockets in the system's places.
pub(crate) fn surroundings() -> Surroundings {
    Surroundings {
        cpus: vec![0, 1],
        inherited_sockets: 0,
        default_socket: "/run/fairq.sock".into(),
        default_control: "/run/fairq.ctl".into(),
    }
}

fn plan(text: &str) -> Result<Plan, String> {
    let settings = parse(text, "fairq.toml").map_err(|refusal| refusal.to_string())?;
    settings.plan(&surroundings()).map_err(|refusal| refusal.to_string())
}

fn refusal(text: &str) -> String {
    plan(text).unwrap_err()
}

fn tenant_flag(text: &str) -> Spanned<TenantTable> {
    Spanned::new(0..0, text.parse().unwrap())
}

#[test]
fn nothing_said_is_a_paced_device_for_two_tenants_three_to_one() {
    let plan = plan("").unwrap();
    assert_eq!(
        plan.device,
        DeviceConfig::Paced {
            size: 4 << 30,
            iops: 20_000,
            bandwidth: 400 << 20,
            latency_ns: 100_000,
            parallelism: 32
        }
    );
    let tenants: Vec<_> = plan
        .tenants
        .iter()
        .map(|tenant| (tenant.name.as_str(), tenant.settings.weight.get()))
        .collect();
    assert_eq!(tenants, [("gold", 300), ("silver", 100)]);
    assert_eq!(plan.policy.name(), "mqfq");
    assert_eq!(plan.source, Source::Sockets(vec!["unix:/run/fairq.sock".parse().unwrap()]));
    assert_eq!(plan.cpus, [0, 1]);
    assert_eq!(plan.tls, None);
    assert_eq!(plan.limits, Limits::default());
}

#[test]
fn the_example_file_is_read_and_names_every_key() {
    let text = include_str!("../../../../docs/fairq.example.toml");
    let plan = plan(text).unwrap();
    assert_eq!(
        plan.device,
        DeviceConfig::File {
            file: Some(FileConfig {
                path: "/srv/fairq/disk.img".into(),
                size: Some(64 << 30),
                create: true,
                store: None,
            }),
            direct: crate::device::Direct::Auto,
        }
    );
    // An installed example does not turn off any default of the policy.
    let default: PolicyTable = "mqfq:slots=auto".parse().unwrap();
    assert_eq!(plan.policy, default.complete().unwrap());
    let tenants: Vec<_> = plan
        .tenants
        .iter()
        .map(|tenant| (tenant.name.as_str(), tenant.settings.weight.get()))
        .collect();
    assert_eq!(tenants, [("db", 300), ("web", 100), ("backup", 50)]);
    assert_eq!(plan.tenants[0].settings.identity, Some("db.example.org".into()));
    assert!(plan.tls.unwrap().is_required);
    assert_eq!(plan.limits, Limits::default(), "the example shows the defaults");
    assert_eq!(plan.timeouts, Timeouts::default());

    // The example must have every key of the program, because users search for keys there.
    let allowed = |table: &str| {
        let refusal = refusal(table);
        let list = refusal.split("(allowed: ").nth(1).unwrap().split(')').next().unwrap();
        list.split(", ").map(str::to_owned).collect::<Vec<_>>()
    };
    for table in [
        "x=1",
        "device={x=1}",
        "policy={x=1}",
        "tls={x=1}",
        "limits={x=1}",
        "timeouts={x=1}",
        "[[tenant]]\nx=1",
        "[[group]]\nx=1",
    ] {
        // Aliases, and a key of the policy that tests add.
        let others = ["D", "T", "newest-first"];
        for key in allowed(table).iter().filter(|key| !others.contains(&key.as_str())) {
            let shown = |line: &str| {
                let line = line.trim_start_matches(['#', ' ', '[']);
                line.strip_prefix(key.as_str())
                    .is_some_and(|rest| rest.trim_start().starts_with(['=', ']']))
            };
            assert!(text.lines().any(shown), "the example lacks `{key}`");
        }
    }
}

#[test]
fn a_wrong_line_is_shown() {
    assert_eq!(
        refusal("[device]\nkind = \"ram\"\nsise = \"4G\"\n"),
        "fairq.toml:3:1: unknown key `sise`; did you mean `size`? (allowed: kind, size, iops, \
         bandwidth, latency, \
         parallelism, path, create, direct, backing, profile, state, slowdown, window, queues, wrr, \
         poller)\n   |\n 3 | sise = \"4G\"\n   | ^^^^"
    );
    assert_eq!(
        refusal("# two tenants\n\n[[tenant]]\nname = \"db\"\nweight = 0\n"),
        "fairq.toml:5:10: weight: `0` is not a weight: write a whole number from 1 to 10000 (100 \
         is the usual)\n   |\n 5 | \
         weight = 0\n   |          ^"
    );
    assert_eq!(
        refusal("device = { kind = \"ram\", size = \"huge\" }"),
        "fairq.toml:1:33: size: `huge` is not a size: write bytes, or binary units as in 4k, \
         64KiB, 1.5G, 2T (1k = \
         1024)\n   |\n 1 | device = { kind = \"ram\", size = \"huge\" }\n   |                                 ^^^^^^"
    );
    let typo = refusal("policy = \"mqfq:slots=64,treshold=4k\"");
    let start = "fairq.toml:1:10: policy: unknown key `treshold`; did you mean `threshold`? \
     (allowed: name, D, slots, merge, read-cost, ";
    let shown = ")\n   |\n 1 | policy = \"mqfq:slots=64,treshold=4k\"\n   |          \
     ^^^^^^^^^^^^^^^^^^^^^^^^^^^";
    assert!(typo.starts_with(start) && typo.ends_with(shown), "{typo}");
    let unfinished = refusal("listen = [\"unix:/run/x\"\nshards = 1\n");
    assert!(unfinished.starts_with("fairq.toml:2:"), "{unfinished}");
    assert!(refusal("[[tenant]]\nweight = 5\n").starts_with("fairq.toml:1:1: `name` is missing"));
}

#[test]
fn a_file_that_is_not_there_says_so() {
    let refusal = load(Path::new("/nonexistent/fairq.toml")).unwrap_err().to_string();
    assert!(
        refusal.starts_with("/nonexistent/fairq.toml: cannot be read: No such file or directory"),
        "{refusal}"
    );
}

#[test]
fn flags_win_key_by_key() {
    let file = parse(
        "listen = [\"unix:/run/a\"]\nshards = 1\n[device]\nkind = \"paced\"\niops = \"50k\"\nsize \
         = \"1G\"\n\
         [policy]\nname = \"mqfq\"\nslots = 8\n[limits]\nconnections = 3\n\
         [[tenant]]\nname = \"a\"\nsize = \"10M\"\nweight = 300\n[[tenant]]\nname = \"b\"\n",
        "fairq.toml",
    )
    .unwrap();
    let flags = Settings {
        device: Some("paced,iops=10k".parse().unwrap()),
        policy: Some("sfqd".parse().unwrap()),
        tenant: vec![tenant_flag("b=20M,weight=700"), tenant_flag("c")],
        listen: vec!["tcp:localhost".parse().unwrap()],
        limits: LimitsTable { depth_per_connection: Some(16), ..LimitsTable::default() },
        ..Settings::default()
    };
    let plan = file.overlaid(flags).plan(&surroundings()).unwrap();
    assert!(matches!(plan.device, DeviceConfig::Paced { size: 1_073_741_824, iops: 10_000, .. }));
    assert_eq!((plan.policy.name(), &plan.policy.keys[..]), ("sfqd", &[][..]));
    let tenants: Vec<_> =
        plan.tenants.iter().map(|t| (t.name.as_str(), t.settings.weight.get(), t.size)).collect();
    assert_eq!(tenants, [("a", 300, Some(10 << 20)), ("b", 700, Some(20 << 20)), ("c", 100, None)]);
    assert_eq!(plan.source, Source::Sockets(vec!["tcp:127.0.0.1:10809".parse().unwrap()]));
    assert_eq!(plan.cpus, [0]);
    assert_eq!((plan.limits.connections, plan.limits.depth_per_connection), (3, 16));
}

#[test]
fn a_controller_of_the_whole_device_is_alone() {
    let listen = "listen = [\"vfio-user-device:/run/ssd\"]\n";
    let planned = |text: &str| {
        let settings = parse(&format!("{listen}{text}"), "fairq.toml").unwrap();
        settings.with_tenants().plan(&surroundings())
    };
    for device in ["nvme-soft,profile=z-ssd", "file,path=/a"] {
        let plan = planned(&format!("device = \"{device}\"")).unwrap();
        let names: Vec<&str> = plan.tenants.iter().map(|tenant| &*tenant.name).collect();
        assert_eq!((names, plan.policy.name()), (vec!["device"], "none"));
    }
    for (text, why) in [
        ("policy = \"mqfq\"", "arbitrates among its queues itself"),
        ("[[tenant]]\nname = \"a\"\n[[tenant]]\nname = \"b\"", "there is one tenant"),
    ] {
        let refusal = planned(text).unwrap_err().to_string();
        assert!(refusal.contains(why), "{refusal}");
    }
    let both = "listen = [\"unix:/a\", \"vfio-user-device:/run/ssd\"]";
    assert!(refusal(both).contains("there is no other address"));
}

#[test]
fn what_does_not_fit_together_is_refused_with_the_cure() {
    assert_eq!(
        refusal("device = \"file,path=/a\""),
        "no tenants: name the tenants that share the device, as in --tenant db=10G,weight=300 \
         --tenant \
         web,weight=100"
    );
    assert!(refusal("device = \"nvme-soft,backing=/a\"").starts_with("no tenants: "));
    assert_eq!(
        refusal("[[tenant]]\nname=\"a\"\n[[tenant]]\nname=\"a\""),
        "fairq.toml:3: tenant a is already there (fairq.toml:1): rename one"
    );
    assert_eq!(
        refusal("[[tenant]]\nname=\"a\"\nidentity=\"a.example\""),
        "fairq.toml:1: tenant a: identity needs client certificates: add --tls-cert, --tls-key and \
         --tls-client-ca"
    );
    assert_eq!(
        refusal("stdio = true\nlisten = [\"unix:/a\"]"),
        "stdio serves one connection and listens nowhere: leave out listen, or stdio"
    );
    assert_eq!(
        refusal("listen = [\"unix:/a\", \"unix:/a\"]"),
        "listen unix:/a is given twice: leave one out"
    );
    assert_eq!(
        refusal("tls.mode = \"required\""),
        "tls: TLS needs the server's certificate: add --tls-cert FILE"
    );
    assert_eq!(
        refusal("tls.cert = \"/c\""),
        "tls: TLS needs the server's private key: add --tls-key FILE"
    );
    assert_eq!(
        refusal("tls.key = \"/k\""),
        "tls: key is given but no certificate: add --tls-cert FILE"
    );
    assert_eq!(refusal("shards = 0"), "shards: 0 serves no client: write 1 to 256");
    assert_eq!(refusal("shards = 257"), "shards: 257 are too many: write 1 to 256");
    assert_eq!(
        refusal("cpus = \"0,7\""),
        "cpus: CPU 7 is not there for this process: choose from 0,1"
    );
    assert_eq!(
        refusal("limits.connections = 0"),
        "limits: connections 0 is not in 1..65536: the default is 256"
    );
    assert_eq!(
        refusal("timeouts.call = \"9s\""),
        "timeouts: call 9s is not in 10ms..8s: the default is 8s"
    );
    assert_eq!(
        refusal("limits.memory-per-connection = \"4k\""),
        "limits: memory-per-connection 4k is not in 40M..4G: the default is 40M"
    );
    assert_eq!(
        refusal("device = \"ram\"\n[[tenant]]\nname=\"a\"\npath=\"/a\""),
        "fairq.toml:2: tenant a has a file of its own, but the device keeps everything in memory: \
         use device file, or \
         leave out path"
    );
    assert_eq!(
        refusal("device = \"file\"\n[[tenant]]\nname=\"a\""),
        "fairq.toml:2: tenant a has no file of its own and the device has none to share: add \
         path=FILE to the tenant, \
         or to the device"
    );
    assert_eq!(
        refusal("device = \"file,path=/d\"\n[[tenant]]\nname=\"a\"\npath=\"/a\""),
        "device: every tenant has a file of its own, so nobody would use /d: leave the device's \
         path out"
    );
}

#[test]
fn tenants_with_files_of_their_own_need_no_device() {
    let plan = plan("[[tenant]]\nname=\"a\"\npath=\"/a\"").unwrap();
    assert_eq!(plan.device, DeviceConfig::File { file: None, direct: crate::device::Direct::Auto });
}

#[test]
fn tls_is_required_once_there_is_a_certificate() {
    let tls = plan("tls = { cert = \"/c\", key = \"/k\" }").unwrap().tls.unwrap();
    assert!(tls.is_required);
    assert!(
        !plan("tls = { cert = \"/c\", key = \"/k\", mode = \"optional\" }")
            .unwrap()
            .tls
            .unwrap()
            .is_required
    );
    assert_eq!(plan("tls = { cert = \"/c\", key = \"/k\", mode = \"off\" }").unwrap().tls, None);
}

#[test]
fn shards_take_the_cpus_they_are_given() {
    assert_eq!(plan("cpus = \"1\"").unwrap().cpus, [1]);
    assert_eq!(plan("cpus = 1").unwrap().cpus, [1]);
    assert_eq!(plan("shards = 3").unwrap().cpus, [0, 1, 0]);
    assert_eq!("0-2,5".parse(), Ok(CpuList(vec![0, 1, 2, 5])));
    for text in ["", "3-1", "a", "0,,1", "9999"] {
        let refusal = text.parse::<CpuList>().unwrap_err();
        assert_eq!(refusal, format!("`{text}` is not a list of CPUs: write 0, 0-3 or 0-3,6"));
    }
}

#[test]
fn sockets_of_the_service_manager_replace_the_default_one() {
    let around = Surroundings { inherited_sockets: 1, ..surroundings() };
    let plan = Settings::default().plan(&around).unwrap();
    assert_eq!(plan.source, Source::Sockets(vec![]));
}

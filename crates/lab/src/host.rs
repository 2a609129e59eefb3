//! `[host]` of a scenario: a machine whose CPUs take time. Its values are those of one of the
//! papers' machines (by default the first), unless other keys override them. `fairq_sim::host`
//! explains each number, and the source of the papers' machines.

use fairq_config::units::{Factor, Nanos};
use fairq_sim::host::{BlockLayer, Cycles, Ways};
use fairq_sim::{Host, Machine};
use serde::Deserialize;

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct HostTable {
    like: Option<String>,
    sockets: Option<u16>,
    cores: Option<u16>,
    threads: Option<u16>,
    mhz: Option<u64>,
    line: Option<Nanos>,
    far_line: Option<Nanos>,
    wake: Option<Nanos>,
    far_wake: Option<Nanos>,
    kernel: Option<String>,
    shared: Option<Factor>,
    #[serde(default)]
    races: bool,
    #[serde(default)]
    cycles: CyclesTable,
}

/// Cycles of each piece of work.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct CyclesTable {
    submit: Option<u64>,
    stage: Option<u64>,
    issue: Option<u64>,
    interrupt: Option<u64>,
    complete: Option<u64>,
    reap: Option<u64>,
    verb: Option<u64>,
    send: Option<u64>,
    load: Option<u64>,
    store: Option<u64>,
    atomic: Option<u64>,
}

impl HostTable {
    /// The host for `ports` ports, each a hardware thread of its own. The error gives the reason
    /// and the cure.
    pub(crate) fn complete(self, ports: usize) -> Result<Host, String> {
        let machine = self.machine()?;
        machine.check()?;
        let threads = machine.all_threads();
        if ports > threads {
            let Machine { sockets, cores, threads: each, .. } = machine;
            return Err(format!(
                "{ports} cores with a queue each, but sockets {sockets} x cores {cores} x threads \
                 {each} = {threads} hardware \
                 threads: say cores = {threads} or less above, or give the host more"
            ));
        }
        let host = machine.host(ports);
        Ok(if self.races { host.racing() } else { host })
    }

    fn machine(&self) -> Result<Machine, String> {
        let usual = match &self.like {
            None => Machine::GOLD_5112,
            Some(name) => chosen(&Machine::ALL, "like", name)?,
        };
        let layer = match &self.kernel {
            None => usual.layer,
            Some(name) => chosen(&BlockLayer::ALL, "kernel", name)?,
        };
        let ns = |said: Option<Nanos>, usual: u64| said.map_or(usual, |Nanos(ns)| ns);
        let CyclesTable {
            submit,
            stage,
            issue,
            interrupt,
            complete,
            reap,
            verb,
            send,
            load,
            store,
            atomic,
        } = self.cycles;
        Ok(Machine {
            sockets: self.sockets.unwrap_or(usual.sockets),
            cores: self.cores.unwrap_or(usual.cores),
            threads: self.threads.unwrap_or(usual.threads),
            mhz: self.mhz.unwrap_or(usual.mhz),
            lines: Ways {
                near_ns: ns(self.line, usual.lines.near_ns),
                far_ns: ns(self.far_line, usual.lines.far_ns),
            },
            wakes: Ways {
                near_ns: ns(self.wake, usual.wakes.near_ns),
                far_ns: ns(self.far_wake, usual.wakes.far_ns),
            },
            layer: BlockLayer {
                submit: submit.unwrap_or(layer.submit),
                stage: stage.unwrap_or(layer.stage),
                issue: issue.unwrap_or(layer.issue),
                interrupt: interrupt.unwrap_or(layer.interrupt),
                complete: complete.unwrap_or(layer.complete),
                reap: reap.unwrap_or(layer.reap),
            },
            cycles: Cycles {
                load: load.unwrap_or(usual.cycles.load),
                store: store.unwrap_or(usual.cycles.store),
                atomic: atomic.unwrap_or(usual.cycles.atomic),
                verb: verb.unwrap_or(usual.cycles.verb),
                send: send.unwrap_or(usual.cycles.send),
                timer: usual.cycles.timer,
            },
            shared_percent: self
                .shared
                .map_or(usual.shared_percent, |Factor(hundredths)| hundredths.into()),
            lines_at_once: usual.lines_at_once,
        })
    }
}

/// The entry with this name.
pub(crate) fn chosen<T: Copy>(all: &[(&str, T)], key: &str, name: &str) -> Result<T, String> {
    all.iter().find(|known| known.0 == name).map(|known| known.1).ok_or_else(|| {
        let names: Vec<&str> = all.iter().map(|known| known.0).collect();
        format!("{key}: nothing is called `{name}`: there are {}", names.join(", "))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(text: &str, ports: usize) -> Result<Host, String> {
        let table: HostTable = toml::from_str(text).map_err(|error| error.message().to_owned())?;
        table.complete(ports)
    }

    #[test]
    fn what_is_said_wins_over_what_the_machine_has() {
        let usual = host("", 8).unwrap().machine;
        assert_eq!(usual, Machine::GOLD_5112);
        let text = "like = \"e5-2630-v3\"\nmhz = 3000\nfar-line = \"200ns\"\nkernel = \
         \"low-latency\"\nshared = 1.5\n\
                    cycles = { submit = 7, atomic = 20 }";
        let said = host(text, 32).unwrap().machine;
        assert_eq!((said.mhz, said.shared_percent, said.all_threads()), (3000, 150, 32));
        assert_eq!((said.lines.near_ns, said.lines.far_ns), (39, 200));
        assert_eq!(said.layer, BlockLayer { submit: 7, ..BlockLayer::LOW_LATENCY });
        assert_eq!(said.cycles, Cycles { atomic: 20, ..Machine::E5_2630_V3.cycles });
    }

    #[test]
    fn nonsense_is_told_with_its_cure() {
        let error = |text: &str, ports| host(text, ports).unwrap_err();
        assert_eq!(
            error("sockets = 2\ncores = 8\nthreads = 2", 33),
            "33 cores with a queue each, but sockets 2 x cores 8 x threads 2 = 32 hardware \
             threads: say cores = 32 or less \
             above, or give the host more"
        );
        assert!(
            error("like = \"cray\"", 1)
                .starts_with("like: nothing is called `cray`: there are gold-5112, ")
        );
        assert_eq!(
            error("kernel = \"bsd\"", 1),
            "kernel: nothing is called `bsd`: there are linux-5, linux-4.15, low-latency"
        );
        assert_eq!(error("sockets = 0", 1), "sockets, cores and threads must be above 0");
        assert_eq!(error("mhz = 0", 1), "a clock of 0 MHz: there must be 1 to 100000");
        assert!(
            error("line = \"200ns\"", 1)
                .starts_with("a line takes 200 ns within a socket and 136 ns to another")
        );
        assert!(error("shared = 0.5", 1).starts_with("work takes 50 % of its time"));
        assert!(error("cycles = { verb = 2000000000 }", 1).starts_with("a number of cycles above"));
        assert!(
            error("cycles = { submit = 0, issue = 0, complete = 0, reap = 0 }", 1)
                .contains("leave the host out")
        );
        assert!(error("cycles = { sumbit = 1 }", 1).contains("unknown field `sumbit`"));
    }
}

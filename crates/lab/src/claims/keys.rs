//! Values that an experiment may change, by keys: of a device's profile, a machine, jobs, policies
//! and costs.

use std::fmt::Display;

use fairq_classic::flashfq::FlashFqConfig;
use fairq_core::CostModel;
use fairq_device::Profile;
use fairq_sim::host::Machine;
use fairq_sim::policies::{AnySubject, Kernel, MqfqSerial, Scheduler, SerialSubject};
use fairq_sim::scenario::Job;
use toml::{Table, Value};

/// A change of a key's value.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum Change<'a> {
    /// A factor of the present value.
    Times(f64),
    /// This number.
    Number(f64),
    /// A value that is not a number, or a number whose type matters.
    To(&'a Value),
}

impl Change<'_> {
    fn integer(self, value: u64) -> Result<u64, String> {
        Ok(match self {
            Change::Times(times) => (value as f64 * times).round() as u64,
            Change::Number(other) | Change::To(&Value::Float(other)) => other.round() as u64,
            Change::To(Value::Integer(other)) => {
                u64::try_from(*other).map_err(|_| format!("{other} is too small"))?
            }
            Change::To(other) => return Err(format!("{other} is no number")),
        })
    }

    fn truth(self) -> Result<bool, String> {
        match self {
            Change::To(Value::Boolean(truth)) => Ok(*truth),
            _ => Err("it has to be true or false".into()),
        }
    }

    fn text(&self) -> Result<&str, String> {
        match self {
            Change::To(Value::String(text)) => Ok(text),
            _ => Err("it has to be a text".into()),
        }
    }
}

fn unknown<T>(what: &str, key: &str) -> Result<T, String> {
    Err(format!("{what} has no {key}"))
}

/// Changes a profile's key, `section.name`.
pub(super) fn on_device(
    profile: &mut Profile,
    key: &str,
    change: Change<'_>,
) -> Result<(), String> {
    let wrong = |error: &dyn Display| format!("{key}: {error}");
    let mut table = Table::try_from(&*profile).map_err(|error| wrong(&error))?;
    let (section, name) = key.split_once('.').ok_or_else(|| wrong(&"it is in no section"))?;
    let missing = || format!("there is no {key}");
    let section = table.get_mut(section).and_then(Value::as_table_mut).ok_or_else(missing)?;
    let value = match (change, section.get(name)) {
        (Change::To(value), _) => value.clone(),
        (Change::Number(value), Some(Value::Integer(_))) => Value::Integer(value.round() as i64),
        (Change::Number(value), _) => Value::Float(value),
        (Change::Times(times), Some(Value::Integer(count))) => {
            Value::Integer((*count as f64 * times).round() as i64)
        }
        (Change::Times(times), Some(Value::Float(value))) => Value::Float(value * times),
        (Change::Times(_), None) => return Err(missing()),
        (Change::Times(_), Some(_)) => return Err(wrong(&"it is not a number")),
    };
    section.insert(name.to_owned(), value);
    *profile = Profile::parse(&table.to_string()).map_err(|error| wrong(&error))?;
    Ok(())
}

/// Changes a machine's key.
pub(super) fn on_machine(
    machine: &mut Machine,
    key: &str,
    change: Change<'_>,
) -> Result<(), String> {
    let layer = &mut machine.layer;
    let values: Vec<&mut u64> = match key {
        "layer" => vec![
            &mut layer.submit,
            &mut layer.issue,
            &mut layer.interrupt,
            &mut layer.complete,
            &mut layer.reap,
        ],
        "layer.submit" => vec![&mut layer.submit],
        "layer.stage" => vec![&mut layer.stage],
        "layer.interrupt" => vec![&mut layer.interrupt],
        "layer.complete" => vec![&mut layer.complete],
        "send" => vec![&mut machine.cycles.send],
        "timer" => vec![&mut machine.cycles.timer],
        "lines" => vec![&mut machine.lines.near_ns, &mut machine.lines.far_ns],
        "wakes.near" => vec![&mut machine.wakes.near_ns],
        "wakes" => vec![&mut machine.wakes.near_ns, &mut machine.wakes.far_ns],
        "lines.far" => vec![&mut machine.lines.far_ns],
        "lines.at-once" => vec![&mut machine.lines_at_once],
        "shared" => vec![&mut machine.shared_percent],
        _ => return unknown("a machine", key),
    };
    for value in values {
        *value = change.integer(*value)?;
    }
    // Work beside another hardware thread takes at least its time alone.
    machine.shared_percent = machine.shared_percent.max(100);
    Ok(())
}

/// Changes a job's key, of a proxy or of fio.
pub(super) fn on_job(job: &mut Job, key: &str, change: Change<'_>) -> Result<(), String> {
    match key {
        "depth" => job.depth = change.integer(job.depth.into())? as u32,
        "think" => job.think_ns = change.integer(job.think_ns)?,
        "reads" => job.read_percent = change.integer(job.read_percent.into())? as u32,
        "interval" => job.interval_ns = change.integer(job.interval_ns)?,
        _ => return unknown("a job", key),
    }
    Ok(())
}

/// Changes a key of the requests' cost.
pub(super) fn on_cost(cost: &mut CostModel, key: &str, change: Change<'_>) -> Result<(), String> {
    match key {
        "least" => cost.min_bytes = change.integer(cost.min_bytes.into())? as u32,
        _ => return unknown("a request's cost", key),
    }
    Ok(())
}

/// Changes a knob of FlashFQ.
pub(super) fn on_flashfq(
    flashfq: &mut FlashFqConfig,
    key: &str,
    change: Change<'_>,
) -> Result<(), String> {
    match key {
        "threshold" => flashfq.threshold_bytes = change.integer(flashfq.threshold_bytes)?,
        "idle" => flashfq.idle_ns = change.integer(flashfq.idle_ns)?,
        "request" => flashfq.request_bytes = change.integer(flashfq.request_bytes.into())? as u32,
        _ => return unknown("FlashFQ", key),
    }
    Ok(())
}

/// The places (prefixes of keys) that belong to a policy; empty for policies without keys.
pub(super) fn places_of(policy: &AnySubject) -> &'static [&'static str] {
    match policy {
        AnySubject::Mqfq(_) | AnySubject::MqfqSerial(_) | AnySubject::MqfqStrict(_) => &["mqfq"],
        AnySubject::D2fq(_) | AnySubject::D2fqParts(_) => &["d2fq"],
        AnySubject::Serial(lock) => match lock.scheduler {
            Scheduler::Cfq | Scheduler::LinuxCfq => &["serial", "cfq", "nass"],
            Scheduler::Bfq | Scheduler::LinuxBfq(_) => &["serial", "bfq", "nass"],
            Scheduler::FlashFq => &["serial", "flashfq", "nass"],
            Scheduler::Fiops => &["serial", "fiops", "nass"],
        },
        _ => &[],
    }
}

/// Changes a key in one of a policy's places.
pub(super) fn on_policy(
    policy: &mut AnySubject,
    place: &str,
    key: &str,
    change: Change<'_>,
) -> Result<(), String> {
    match policy {
        AnySubject::Mqfq(multi) | AnySubject::MqfqSerial(MqfqSerial(multi)) => {
            on_mqfq(&mut multi.slots, &mut multi.threshold, key, change)
        }
        AnySubject::MqfqStrict(parts) => {
            on_mqfq(&mut parts.slots, &mut parts.threshold, key, change)
        }
        AnySubject::D2fq(direct) => on_d2fq(direct, key, change),
        AnySubject::D2fqParts(parts) => on_d2fq(&mut parts.direct, key, change),
        AnySubject::Serial(lock) => match place {
            "serial" => on_serial(lock, key, change),
            "nass" => on_nass(lock, key, change),
            "flashfq" if !["waits", "whose", "quantum", "asynchronous-writes"].contains(&key) => {
                on_flashfq(&mut lock.flashfq, key, change)
            }
            _ => on_scheduler(lock, key, change),
        },
        _ => unknown("the policy", key),
    }
}

fn on_mqfq(
    slots: &mut u32,
    threshold: &mut u64,
    key: &str,
    change: Change<'_>,
) -> Result<(), String> {
    match key {
        "slots" => *slots = change.integer(u64::from(*slots))? as u32,
        "threshold" => *threshold = change.integer(*threshold)?,
        _ => return unknown("MQFQ", key),
    }
    Ok(())
}

fn on_d2fq(
    direct: &mut fairq_sim::policies::D2fqSubject,
    key: &str,
    change: Change<'_>,
) -> Result<(), String> {
    match key {
        "strict-paper" => direct.strict_paper = change.truth()?,
        "tau-l" => direct.tau_l = change.integer(direct.tau_l)?,
        _ => return unknown("D2FQ", key),
    }
    Ok(())
}

fn on_serial(lock: &mut SerialSubject, key: &str, change: Change<'_>) -> Result<(), String> {
    match key {
        "merge" => lock.merge_bytes = change.integer(lock.merge_bytes.into())? as u32,
        _ => return unknown("a scheduler behind a lock", key),
    }
    Ok(())
}

fn on_nass(lock: &mut SerialSubject, key: &str, change: Change<'_>) -> Result<(), String> {
    let Some(nass) = lock.nass else { return Ok(()) };
    if (key, change.text()) == ("whose", Ok("fairq")) {
        lock.strict_nass = false;
        return Ok(());
    }
    let truth = change.truth()?;
    lock.nass = Some(match key {
        "aggressiveness" => nass.with(|config| config.aggressiveness = truth),
        "idleness" => nass.with(|config| config.idleness = truth),
        _ => return unknown("NASS", key),
    });
    Ok(())
}

fn on_scheduler(lock: &mut SerialSubject, key: &str, change: Change<'_>) -> Result<(), String> {
    match (key, &mut lock.scheduler) {
        ("waits", _) => lock.waits = change.truth()?,
        ("quantum", _) => lock.quantum = change.integer(lock.quantum.into())? as u32,
        // fairq's CFQ waits for no write in any case. Under FlashFQ the key is accepted, because a
        // later key (`whose`; keys are applied in alphabetical order) may replace FlashFQ by
        // Linux's CFQ.
        ("asynchronous-writes", Scheduler::LinuxCfq | Scheduler::Cfq | Scheduler::FlashFq) => {
            lock.async_writes = change.truth()?
        }
        ("kernel", Scheduler::LinuxBfq(bfq)) => {
            bfq.kernel = match change.text()? {
                "4.15" => Kernel::V4_15,
                "5.2" => Kernel::V5_2,
                "5.3" => Kernel::V5_3,
                "7.2" => Kernel::V7_2,
                other => return Err(format!("Linux {other} is not modelled")),
            };
        }
        ("budget", Scheduler::LinuxBfq(bfq)) => bfq.budget = change.integer(bfq.budget)?,
        ("cycles", Scheduler::LinuxBfq(bfq)) => bfq.cycles = change.integer(bfq.cycles)?,
        // The time of fairq's own BFQ follows from its steps.
        ("cycles", Scheduler::Bfq) => {}
        ("whose", scheduler) => {
            *scheduler = match (&scheduler, change.text()?) {
                (Scheduler::LinuxCfq | Scheduler::Cfq, "fairq") => Scheduler::Cfq,
                (Scheduler::LinuxBfq(_) | Scheduler::Bfq, "fairq") => Scheduler::Bfq,
                (Scheduler::FlashFq, "cfq") => Scheduler::Cfq,
                (Scheduler::FlashFq, "linux-cfq") => Scheduler::LinuxCfq,
                (Scheduler::FlashFq, "bfq") => Scheduler::Bfq,
                (_, other) => return Err(format!("{other} has no such scheduler")),
            };
        }
        _ => return unknown("the scheduler", key),
    }
    Ok(())
}

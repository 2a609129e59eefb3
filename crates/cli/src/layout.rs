//! `fairq layout`: the layout record of a pool, without a server.

use std::path::Path;

use fairq_config::engine::available_cpus;
use fairq_config::files::write_out;
use fairq_config::layout::place;
use fairq_config::layout::pool::{Found, Media, Pool, lines, state_directory};
use fairq_config::layout::record::{LayoutError, Record};
use fairq_config::listen;
use fairq_config::refusal::Refusal;
use fairq_config::settings::{self, Plan, Surroundings};
use fairq_config::table::{align_right, plain_table};
use fairq_config::units::exact_size;
use serde_json::json;

use crate::args::LayoutCommand;
use crate::operate::losses;

/// Carries out a command.
pub(crate) fn run(command: LayoutCommand) -> anyhow::Result<()> {
    match command {
        LayoutCommand::Show { device, json } => {
            let pool = found(&Media::open(&device)?, &device)?;
            let record = pool.record();
            write_out(&if json { format!("{:#}", as_json(record)) } else { table(record) })
        }
        LayoutCommand::Check { device, config } => check(&device, config.as_deref()),
        LayoutCommand::Adopt { device, config, replace } => {
            adopt(&device, config.as_deref(), replace)
        }
        LayoutCommand::Forget { device, tenant } => {
            let id = change(&device, |record| record.free(&tenant).map(drop))?;
            losses::rename(&id, &tenant, None).map_err(|error| unnoted(&tenant, &error))?;
            write_out(&format!(
                "{tenant}: its range is free, and is zeroed before another \
                 tenant gets it"
            ))
        }
        LayoutCommand::Rename { device, old, new } => {
            let id = change(&device, |record| record.rename(&old, &new))?;
            losses::rename(&id, &old, Some(&new)).map_err(|error| unnoted(&new, &error))?;
            write_out(&format!("{old} -> {new}: write the new name into the configuration, too"))
        }
    }
}

/// The record of a pool, which must be valid.
fn found(media: &Media, device: &Path) -> Result<Pool, Refusal> {
    let shown = device.display();
    match media.find()? {
        Found::Whole(pool) => Ok(*pool),
        Found::Nothing => Err(Refusal::new(format!(
            "{shown} has no layout record: a server makes one at its start; adopt a pool of \
             version 0.1.0 by fairq layout adopt {shown} --config FILE"
        ))),
        Found::Trouble(what, _) => {
            Err(Refusal::new(format!("{shown}: {what}: see fairq layout adopt {shown}")))
        }
    }
}

fn unnoted(tenant: &str, error: &std::io::Error) -> Refusal {
    Refusal::new(format!(
        "the record is changed, but not the file in {} that records that {tenant} may have lost \
         data ({error}): flushes of {tenant} may succeed although data are lost; check the data",
        state_directory().display()
    ))
}

/// Changes the record of a pool that no server uses; returns the pool's identifier.
fn change(
    device: &Path,
    change: impl FnOnce(&mut Record) -> Result<(), LayoutError>,
) -> anyhow::Result<String> {
    let mut pool = found(&Media::open_alone(device)?, device)?;
    let mut record = pool.record().clone();
    change(&mut record).map_err(|error| Refusal::new(format!("{}: {error}", device.display())))?;
    pool.save(&record)?;
    Ok(record.id)
}

/// The configuration of a server, and the sizes of its tenants' own files.
fn plan(config: &Path) -> Result<(Plan, Vec<u64>), Refusal> {
    let surroundings = Surroundings {
        cpus: available_cpus(),
        inherited_sockets: 0,
        default_socket: listen::default_socket(),
        default_control: listen::default_control(),
    };
    let plan = settings::load(config)?.with_tenants().plan(&surroundings)?;
    let own = plan.tenants.iter().filter_map(|tenant| {
        let path = tenant.path.as_ref()?;
        // A file that does not exist yet gets its configured size.
        let there = path.metadata().map(|file| file.len()).ok();
        Some(there.filter(|size| *size > 0).or(tenant.size).unwrap_or(0))
    });
    let own = own.collect();
    Ok((plan, own))
}

fn check(device: &Path, config: Option<&Path>) -> anyhow::Result<()> {
    let pool = found(&Media::open(device)?, device)?;
    let Some(config) = config else {
        return write_out(&format!("{}: the record fits", device.display()));
    };
    let (plan, own) = plan(config)?;
    let path = device.display().to_string();
    let placed = place::start(&path, &plan.tenants, pool.record(), &own)?;
    let mut text = String::new();
    let shared = plan.tenants.iter().zip(&placed.ranges).filter(|(of, _)| of.path.is_none());
    for (tenant, range) in shared {
        let is_new = if placed.added.contains(&tenant.name) { ", new" } else { "" };
        let (size, offset) = (exact_size(range.size), exact_size(range.offset));
        text += &format!("{} ({size} at {offset}{is_new})\n", tenant.name);
    }
    for held in &placed.reserved {
        text += &format!("{held}: not in the configuration, reserved\n");
    }
    write_out(text.trim_end())
}

fn adopt(device: &Path, config: Option<&Path>, replace: bool) -> anyhow::Result<()> {
    let media = Media::open_alone(device)?;
    let shown = device.display();
    let kept = match media.find()? {
        Found::Whole(_) if !replace => {
            let what = "its layout record fits: there is nothing to adopt; --replace with --config \
                        places its tenants anew";
            return Err(Refusal::new(format!("{shown}: {what}")).into());
        }
        Found::Trouble(_, pool) if config.is_none() => pool,
        _ => None,
    };
    let pool = match (kept, config) {
        (Some(pool), _) => media.bind(*pool)?,
        (None, Some(config)) => {
            let (plan, own) = plan(config)?;
            let (record, is_full) = media.adopt(&plan.tenants, &own, false)?;
            media.write(record, is_full)?
        }
        (None, None) => {
            return Err(Refusal::new(format!(
                "{shown} has no record that could be kept: add --config FILE, the configuration \
                 with which its tenants' data were written"
            ))
            .into());
        }
    };
    write_out(&format!("{shown}: adopted; no data were changed{}", lines(pool.record())))
}

fn as_json(record: &Record) -> serde_json::Value {
    let range = |held: &fairq_config::layout::record::Held| {
        json!({
            "name": held.name, "offset": held.offset, "size": held.size, "zeroed": held.zeroed,
        })
    };
    json!({
        "id": record.id,
        "size": record.size,
        "free": record.gaps().iter().map(|gap| gap.1).sum::<u64>(),
        "ranges": record.ranges().iter().map(range).collect::<Vec<_>>(),
    })
}

fn table(record: &Record) -> String {
    let mut table = plain_table();
    table.set_header(["range", "size", "at", ""]);
    let held = record.ranges().iter().map(|held| {
        let state = if held.zeroed { "" } else { "to be zeroed" };
        (held.offset, held.name.clone(), held.size, state)
    });
    let free = record.gaps().into_iter().map(|(at, size)| (at, "(free)".to_owned(), size, ""));
    let mut rows: Vec<_> = held.chain(free).collect();
    rows.sort_by_key(|row| row.0);
    for (offset, name, size, state) in rows {
        table.add_row([name, exact_size(size), exact_size(offset), state.to_owned()]);
    }
    align_right(&mut table);
    table.trim_fmt()
}

//! The layout record of the file that tenants share, while a server has it, and the thread that
//! writes it.
//!
//! A change is on stable storage before it is in force. A device may hang, so the control thread
//! does not wait for it: a call that changes the record starts the write and is refused as
//! unfinished, and the server repeats the call until the record is written. One write is under way
//! at a time. If a call is not repeated, the next write reverts its change, unless the change
//! describes something that has happened already.
//!
//! Changes that no call waits for, such as a zeroed range, are in a queue. Each write includes many
//! of them, so that thousands of them need few writes.
//!
//! **Example.** `rename a b` and `rename c d` come at the same time. The first starts the write of
//! a record with `b`, and the second is refused as unfinished. 20 ms later the first finds the
//! record written, the record is in force, and the server renames its tenant. Then the second
//! begins.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel};
use std::time::{Duration, Instant};

use crate::view::{Layout, ReservedRange};
use fairq_config::layout::pool::Pool;
use fairq_config::layout::record::{Held, LayoutError, Record};
use fairq_config::refusal::Refusal;

/// Time that a call waits for its write; most disks need less.
const MOMENT: Duration = Duration::from_millis(2);
/// A call that is not repeated within this time was abandoned.
const UNFETCHED: Duration = Duration::from_secs(2);
/// The most queued changes in a write: each of them searches the record.
const ALONG: usize = 256;

/// A change of the record.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Edit {
    /// Frees a range.
    Free(String),
    /// Gives a range to a new name; a name that has a range keeps it.
    Claim {
        name: String,
        offset: u64,
        size: u64,
        zeroed: bool,
    },
    Rename {
        from: String,
        to: String,
    },
    /// Sets the size of a range and marks it as zeroed.
    Zeroed {
        name: String,
        size: u64,
    },
}

impl Edit {
    fn make(&self, record: &mut Record) -> Result<(), LayoutError> {
        match self {
            Edit::Free(name) => match record.free(name) {
                Ok(_) | Err(LayoutError::Unknown(_)) => Ok(()),
                Err(error) => Err(error),
            },
            Edit::Claim { .. } => record.claim_all(self.new_range(record)),
            Edit::Rename { from, to } => record.rename(from, to),
            Edit::Zeroed { name, size } => {
                if record.find(name).is_none_or(|held| held.size != *size) {
                    record.resize(name, *size)?;
                }
                record.set_zeroed(name)
            }
        }
    }

    /// The range of a claim, if its name has none in the record.
    fn new_range(&self, record: &Record) -> Option<Held> {
        let Edit::Claim { name, offset, size, zeroed } = self else { return None };
        let (name, offset, size, zeroed) = (name.clone(), *offset, *size, *zeroed);
        record.find(&name).is_none().then_some(Held { name, offset, size, zeroed })
    }

    /// Whether the change claims a range for this name.
    pub(super) fn is_claim_of(&self, tenant: &str) -> bool {
        matches!(self, Edit::Claim { name, .. } if name == tenant)
    }

    /// The tenant whose range it changes.
    fn tenant(&self) -> &str {
        match self {
            Edit::Free(name) | Edit::Claim { name, .. } | Edit::Zeroed { name, .. } => name,
            Edit::Rename { from, .. } => from,
        }
    }
}

/// The fate of a change whose call is not repeated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum GivenUp {
    /// The next write reverts it.
    TakenBack,
    /// It stays in force.
    Stands,
}

/// The thread's work.
enum Job {
    Save(Record),
    /// Adapts the record to this size of the pool's file, in bytes.
    Fit(u64),
}

/// The write that is under way, or whose result has not been fetched.
struct Writing {
    /// The changes of a call; `None` if no call waits for the write.
    call: Option<(Vec<Edit>, GivenUp)>,
    /// The queued changes in this write.
    queued: BTreeSet<Edit>,
    /// The new size of the pool's file, if the write is for that; in bytes.
    size: Option<u64>,
    /// Time of the last call for the write; `None` if the call was abandoned.
    wanted: Option<Instant>,
    result: Option<Result<Record, String>>,
}

/// The record in force, and the channel to the thread that writes records.
pub(super) struct Keeper {
    path: Arc<str>,
    record: Arc<Record>,
    jobs: Sender<Job>,
    done: Receiver<Result<Record, String>>,
    writing: Option<Writing>,
    queue: BTreeSet<Edit>,
    /// Whether the record on storage contains a change that has to be reverted.
    is_stale: bool,
    /// Size of the pool's file at the last check for growth, in bytes.
    seen: u64,
    /// The last failure in the log.
    failure: Option<String>,
}

impl Keeper {
    pub(super) fn new(mut pool: Pool) -> std::io::Result<Keeper> {
        let path = pool.path().display().to_string();
        let record = pool.record().clone();
        Keeper::writing_by(path, record, move |job| {
            let result = match job {
                Job::Save(record) => pool.save(&record).map_err(|error| error.to_string()),
                Job::Fit(size) => pool.fit(size).map(drop).map_err(|error| error.to_string()),
            };
            result.map(|()| pool.record().clone())
        })
    }

    fn writing_by(
        path: String,
        record: Record,
        mut write: impl FnMut(Job) -> Result<Record, String> + Send + 'static,
    ) -> std::io::Result<Keeper> {
        let (jobs, work) = channel::<Job>();
        let (report, done) = channel();
        let run = move || {
            for job in work {
                if report.send(write(job)).is_err() {
                    return;
                }
            }
        };
        std::thread::Builder::new().name("fairq-layout".into()).spawn(run)?;
        Ok(Keeper {
            path: path.into(),
            record: Arc::new(record),
            jobs,
            done,
            writing: None,
            queue: BTreeSet::new(),
            is_stale: false,
            seen: 0,
            failure: None,
        })
    }

    /// The pool's path.
    pub(super) fn path(&self) -> &str {
        &self.path
    }

    /// The record in force.
    pub(super) fn record(&self) -> &Record {
        &self.record
    }

    /// The record in force with the ranges that are being claimed: no other name may have these.
    pub(super) fn with_claims(&self) -> Record {
        let mut record = Record::clone(&self.record);
        let call = self.writing.as_ref().and_then(|writing| writing.call.as_ref());
        let claims = call.into_iter().flat_map(|(edits, _)| edits);
        for edit in claims.filter(|edit| matches!(edit, Edit::Claim { .. })) {
            // A claim may need a range that a removal in the same write frees. That range is not
            // free yet, so an error is ignored.
            let _ = edit.make(&mut record);
        }
        record
    }

    /// Makes changes of the record. They are in force when it returns `Ok`. While the record is
    /// being written it returns a temporary refusal.
    pub(super) fn change(&mut self, edits: &[Edit], given_up: GivenUp) -> Result<(), Refusal> {
        self.written(edits, given_up)?;
        self.commit(edits);
        Ok(())
    }

    /// Like [`change`](Self::change), but the changes are in force only after
    /// [`commit`](Self::commit).
    pub(super) fn written(&mut self, edits: &[Edit], given_up: GivenUp) -> Result<(), Refusal> {
        let deadline = Instant::now() + MOMENT;
        loop {
            self.collect(deadline);
            if self.waits_for(edits) {
                break;
            }
            let mut next = Record::clone(&self.record);
            self.make(edits, &mut next)?;
            if next == *self.record {
                return Ok(());
            }
            match &self.writing {
                None => self.begin(Some((edits.to_vec(), given_up)), next)?,
                Some(_) if Instant::now() < deadline => {}
                Some(_) => {
                    let text = "the last change is still being written";
                    return Err(Refusal::temporary(self.refusal(text)));
                }
            }
        }
        let Some(writing) = &mut self.writing else { return Ok(()) };
        writing.wanted = Some(Instant::now());
        match writing.result.as_ref().map(|result| result.as_ref().err().cloned()) {
            None => Err(Refusal::temporary(self.refusal("the device does not answer"))),
            Some(None) => Ok(()),
            Some(Some(error)) => {
                let error = Refusal::new(self.refusal(&error));
                self.end_write(false);
                Err(error)
            }
        }
    }

    /// Puts written changes in force.
    pub(super) fn commit(&mut self, edits: &[Edit]) {
        if self.waits_for(edits) {
            self.end_write(true);
        }
    }

    /// The caller will not repeat the call for these changes.
    pub(super) fn give_up(&mut self, edits: &[Edit]) {
        if self.waits_for(edits)
            && let Some(writing) = &mut self.writing
        {
            writing.wanted = None;
        }
    }

    /// Whether a write is under way, or changes are queued.
    pub(super) fn is_writing(&self) -> bool {
        self.writing.is_some() || !self.queue.is_empty()
    }

    /// Queues a change for which no call waits.
    pub(super) fn queue(&mut self, edit: Edit) {
        let is_written = self.writing.as_ref().is_some_and(|of| of.queued.contains(&edit));
        if !is_written {
            self.queue.insert(edit);
        }
        self.tend();
    }

    /// Whether the range of this name is being freed.
    pub(super) fn is_freeing(&self, name: &str) -> bool {
        let free = Edit::Free(name.to_owned());
        self.queue.contains(&free)
            || self.writing.as_ref().is_some_and(|writing| {
                let call = writing.call.as_ref();
                writing.queued.contains(&free) || call.is_some_and(|of| of.0.contains(&free))
            })
    }

    /// Drops the queued changes of tenants that have been removed.
    pub(super) fn forget(&mut self, names: &HashSet<&str>) {
        self.queue.retain(|edit| !names.contains(edit.tenant()));
        if let Some(writing) = &mut self.writing {
            writing.queued.retain(|edit| !names.contains(edit.tenant()));
        }
    }

    /// Whether the record has a tenant's range with this size and as zeroed. If not, this is queued
    /// to be written.
    pub(super) fn note_zeroed(&mut self, name: &str, size: u64) -> bool {
        self.collect(Instant::now());
        let held = self.record.find(name);
        if held.is_some_and(|held| held.zeroed && held.size == size) {
            return true;
        }
        self.queue(Edit::Zeroed { name: name.to_owned(), size });
        false
    }

    /// Adapts the record to the size of the pool's file, in bytes.
    pub(super) fn fit(&mut self, size: u64) {
        self.tend();
        if size != self.seen && self.writing.is_none() && self.jobs.send(Job::Fit(size)).is_ok() {
            let (call, queued, wanted) = (None, BTreeSet::new(), Some(Instant::now()));
            self.writing = Some(Writing { call, queued, size: Some(size), wanted, result: None });
        }
    }

    /// Writes the queue, if no write is under way.
    fn tend(&mut self) {
        self.collect(Instant::now());
        if self.writing.is_none() && (self.is_stale || !self.queue.is_empty()) {
            let next = Record::clone(&self.record);
            // If this fails, the queue stays, and the next call of this function tries again.
            let _ = self.begin(None, next);
        }
    }

    /// Ends the keeper with the server: the change of a call that will not be repeated is reverted,
    /// if the device is fast enough.
    pub(super) fn end(&mut self) {
        let call = self.writing.as_ref().and_then(|writing| writing.call.as_ref());
        if call.is_some_and(|(_, given_up)| *given_up == GivenUp::TakenBack) {
            let _ = self.jobs.send(Job::Save(Record::clone(&self.record)));
        }
    }

    /// Whether these are the changes of the call whose write is under way or done.
    fn waits_for(&self, edits: &[Edit]) -> bool {
        let call = self.writing.as_ref().and_then(|writing| writing.call.as_ref());
        call.is_some_and(|(of_call, _)| of_call == edits)
    }

    fn make(&self, edits: &[Edit], record: &mut Record) -> Result<(), Refusal> {
        let refused = |error| Refusal::new(format!("{}: {error}", self.path));
        let is_claim = |edit: &Edit| matches!(edit, Edit::Claim { .. });
        // New ranges are checked against all others in one pass.
        let make = |part: &[Edit]| match part {
            [edit] => edit.make(record),
            claims => {
                let new: Vec<Held> =
                    claims.iter().filter_map(|edit| edit.new_range(record)).collect();
                record.claim_all(new)
            }
        };
        let mut parts = edits.chunk_by(|a, b| is_claim(a) && is_claim(b));
        parts.try_for_each(make).map_err(refused)
    }

    fn refusal(&self, what: &str) -> String {
        format!("{}: the layout record cannot be written: {what}; nothing has changed", self.path)
    }

    /// Starts the write of `next`, with changes of the queue.
    fn begin(
        &mut self,
        call: Option<(Vec<Edit>, GivenUp)>,
        mut next: Record,
    ) -> Result<(), Refusal> {
        let (mut failed, mut along) = (Vec::new(), BTreeSet::new());
        while along.len() < ALONG
            && let Some(edit) = self.queue.pop_first()
        {
            match edit.make(&mut next) {
                Ok(()) => drop(along.insert(edit)),
                // The tenant of this change has been removed.
                Err(LayoutError::Unknown(_)) => {}
                Err(error) => failed.push(error.to_string()),
            }
        }
        failed.into_iter().for_each(|text| self.note_failure(format!("{}: {text}", self.path)));
        if call.is_none() && !self.is_stale && next == *self.record {
            return Ok(());
        }
        if self.jobs.send(Job::Save(next)).is_err() {
            self.queue.extend(along);
            return Err(Refusal::new(self.refusal("its thread has ended")));
        }
        let wanted = Some(Instant::now());
        self.writing = Some(Writing { call, queued: along, size: None, wanted, result: None });
        Ok(())
    }

    /// Fetches the result of the write, and waits for it until `deadline`.
    fn collect(&mut self, deadline: Instant) {
        let Some(writing) = &mut self.writing else { return };
        if writing.result.is_none() {
            let left = deadline.saturating_duration_since(Instant::now());
            writing.result = match left.is_zero() {
                true => match self.done.try_recv() {
                    Ok(result) => Some(result),
                    Err(TryRecvError::Empty) => None,
                    Err(TryRecvError::Disconnected) => Some(Err("its thread has ended".into())),
                },
                false => match self.done.recv_timeout(left) {
                    Ok(result) => Some(result),
                    Err(RecvTimeoutError::Timeout) => None,
                    Err(RecvTimeoutError::Disconnected) => Some(Err("its thread has ended".into())),
                },
            };
        }
        if writing.result.is_none() {
            return;
        }
        let is_given_up = writing.wanted.is_none_or(|wanted| wanted.elapsed() > UNFETCHED);
        match writing.call {
            None => self.end_write(true),
            Some((_, GivenUp::Stands)) if is_given_up => self.end_write(true),
            Some((_, GivenUp::TakenBack)) if is_given_up => {
                self.is_stale |= writing.result.as_ref().is_some_and(Result::is_ok);
                self.end_write(false);
            }
            Some(_) => {}
        }
    }

    /// Ends a write that has a result. Its record is in force if `is_in_force`; otherwise its part
    /// of the queue is to be written again.
    fn end_write(&mut self, is_in_force: bool) {
        let Some(Writing { queued, size, result, .. }) = self.writing.take() else { return };
        match result {
            Some(Ok(record)) if is_in_force => {
                if let Some(size) = size {
                    self.seen = size;
                    let (pool, from, to) = (&*self.path, self.record.size, record.size);
                    if to > from {
                        tracing::info!(pool, from, to, "the pool has grown: the new space is free");
                    }
                }
                self.record = Arc::new(record);
                self.is_stale = false;
            }
            Some(Err(error)) if is_in_force => {
                self.queue.extend(queued);
                self.note_failure(self.refusal(&error));
            }
            _ => self.queue.extend(queued),
        }
    }

    /// Logs the failure of a change that is retried, unless the last logged failure is the same.
    fn note_failure(&mut self, text: String) {
        if self.failure.as_ref() != Some(&text) {
            tracing::error!("{text}");
            self.failure = Some(text);
        }
    }

    /// The record in force, to be shown.
    pub(super) fn shown(&self) -> Shown {
        Shown { path: self.path.clone(), record: self.record.clone() }
    }
}

/// A record as `status` shows it.
pub(super) struct Shown {
    path: Arc<str>,
    record: Arc<Record>,
}

impl Shown {
    /// The record for `status`; ranges of names that are not served are reserved.
    pub(super) fn view(&self, is_served: impl Fn(&str) -> bool) -> Layout {
        let ranges = self.record.ranges().iter().filter(|held| !is_served(&held.name));
        let range = |held: &Held| ReservedRange {
            name: held.name.clone(),
            offset: held.offset,
            size: held.size,
        };
        Layout {
            path: self.path.to_string(),
            id: self.record.id.clone(),
            size: self.record.size,
            reserved: ranges.map(range).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::SyncSender;
    use std::sync::{Mutex, PoisonError};

    use super::*;

    const MIB: u64 = 1 << 20;

    /// A keeper, a gate for each write, and the record on storage.
    fn rig() -> (Keeper, SyncSender<Result<(), String>>, Arc<Mutex<Record>>) {
        let record = Record::new("id".into(), 64 * MIB, 64 * MIB);
        let disk = Arc::new(Mutex::new(record.clone()));
        let (gate, open) = std::sync::mpsc::sync_channel(64);
        let written = disk.clone();
        let write = move |job| {
            open.recv().map_err(|error: std::sync::mpsc::RecvError| error.to_string())??;
            let Job::Save(record) = job else { return Err("no growth here".into()) };
            *written.lock().unwrap_or_else(PoisonError::into_inner) = record.clone();
            Ok(record)
        };
        (Keeper::writing_by("pool".into(), record, write).unwrap(), gate, disk)
    }

    fn claim(name: &str, place: u64) -> Vec<Edit> {
        let (offset, size) = (place * MIB, MIB);
        vec![Edit::Claim { name: name.into(), offset, size, zeroed: false }]
    }

    fn names(record: &Record) -> Vec<&str> {
        record.ranges().iter().map(|held| &*held.name).collect()
    }

    /// Repeats a call until it ends.
    fn call(keeper: &mut Keeper, edits: &[Edit], given_up: GivenUp) -> Result<(), Refusal> {
        loop {
            match keeper.change(edits, given_up) {
                Err(error) if error.is_temporary() => {}
                other => return other,
            }
        }
    }

    #[test]
    fn a_change_is_in_force_when_it_is_written() {
        let (mut keeper, gate, disk) = rig();
        let [a, b] = [claim("a", 0), claim("b", 1)];
        assert!(keeper.change(&a, GivenUp::TakenBack).unwrap_err().is_temporary());
        assert!(keeper.change(&b, GivenUp::TakenBack).unwrap_err().is_temporary());
        assert!(keeper.record().ranges().is_empty());
        assert_eq!(names(&keeper.with_claims()), ["a"], "nobody else may have its range");
        // The next write includes a change that no call waits for.
        assert!(!keeper.note_zeroed("a", MIB));
        (0..2).for_each(|_| gate.send(Ok(())).unwrap());
        call(&mut keeper, &a, GivenUp::TakenBack).unwrap();
        call(&mut keeper, &b, GivenUp::TakenBack).unwrap();
        assert_eq!(
            (names(keeper.record()), &*disk.lock().unwrap()),
            (vec!["a", "b"], keeper.record())
        );
        assert!(keeper.note_zeroed("a", MIB) && !keeper.record().find("b").unwrap().zeroed);
        // A change that is in force already is not written again.
        keeper.change(&a, GivenUp::TakenBack).unwrap();
        gate.send(Err("no space".into())).unwrap();
        let error = call(&mut keeper, &claim("c", 2), GivenUp::TakenBack).unwrap_err();
        assert!(error.to_string().contains("cannot be written: no space"), "{error}");
        assert_eq!(names(keeper.record()), ["a", "b"]);
    }

    #[test]
    fn a_change_that_was_given_up_is_taken_back_unless_it_stands() {
        let (mut keeper, gate, disk) = rig();
        (0..3).for_each(|_| gate.send(Ok(())).unwrap());
        let on_disk = |name: &str| {
            let disk = disk.lock().unwrap();
            disk.find(name).is_some()
        };
        let wait = |keeper: &mut Keeper| {
            while keeper.writing.is_some() || keeper.is_stale {
                keeper.tend();
            }
        };
        while keeper.written(&claim("a", 0), GivenUp::TakenBack).is_err() {}
        assert!(on_disk("a"));
        keeper.give_up(&claim("a", 0));
        wait(&mut keeper);
        assert!(!on_disk("a") && keeper.record().ranges().is_empty());
        while keeper.written(&claim("b", 0), GivenUp::Stands).is_err() {}
        keeper.give_up(&claim("b", 0));
        wait(&mut keeper);
        assert!(on_disk("b") && keeper.record().find("b").is_some());
    }
}

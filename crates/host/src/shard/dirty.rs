//! Dirty bytes: data of writes that are in the page cache and not yet on the disk.
//!
//! **Problem.** A write to the page cache ends when the kernel has a copy. One tenant can fill the
//! cache with gigabytes, and every flush of another tenant then waits for their write-back.
//!
//! **Model.** Each cached file has a *bound*: the bytes that its disk writes in half a second. The
//! tenants with dirty bytes share the bound by weight. A write that would exceed its tenant's share
//! waits in the shard, before the scheduler, so that it occupies no slot of the device
//! ([`Dirty::admit`]). A tenant without dirty bytes may always write.
//!
//! When the dirty bytes reach a quarter of the bound, or a write waits, a *round* of write-back
//! begins: a thread of the file's store makes the kernel write the dirty bytes in pieces, two of
//! which are submitted to the disk at a time. Each written piece frees part of the bound and wakes
//! the shards with waiting writes. A file has one round at a time: data of writes that end
//! meanwhile belong to the next round, and a flush removes its tenant's dirty bytes from that next
//! round.
//!
//! **Control.** The speed of a round determines the bound. The time of a round of less than an
//! eighth of the bound is mostly latency, so such a round can only raise the bound. No round more
//! than doubles it, since the kernel may already have written a part.
//! `docs/decisions/0049-dirty-bytes.md` has the reasons.
//!
//! **Example.** A disk writes 60 MB/s, so the bound is 30 MB. a writes 3 GiB: once 30 MB are dirty,
//! its writes proceed at 60 MB/s. b writes 4 KiB and flushes: the disk has at most 30 MB to write
//! before that.
//!
//! **Bounds.** A tenant's dirty bytes are at most its share and one write. When another tenant
//! begins to write, the shares become smaller; the dirty bytes may exceed them until the next round
//! has ended. Bytes that are written twice count twice, up to the length of their range. Each
//! cached write takes a lock twice and visits the tenants of its file that have dirty bytes.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use fairq_core::{PortId, PortSet};

use crate::device::WriteOut;
use crate::io::wakers::Wakers;
use crate::observe::interference::Served;

/// The time in which the disk shall be able to write all dirty bytes of a file.
const TARGET: Duration = Duration::from_millis(500);
/// The smallest bound, and the bound of a file before its first round, in bytes.
const LEAST: u64 = 1 << 20;
/// The number of pieces into which a tenant's part of a round is split; a round waits for each.
const PIECES: u64 = 8;
/// The least number of dirty bytes in a piece, unless the tenant's part has fewer: the size of the
/// pieces into which requests are split.
const LEAST_PIECE: u64 = 64 << 10;

/// The dirty bytes of all cached files of one run.
pub struct Dirty {
    files: Mutex<BTreeMap<u16, File>>,
    /// The number of times that waiting writes were made to retry.
    changes: AtomicU64,
    wakers: Arc<Wakers>,
    /// The counters of service. A tenant is served when its bytes are written to the disk.
    served: Arc<Served>,
}

struct File {
    /// The most dirty bytes.
    bound: u64,
    /// The tenants that have dirty bytes.
    tenants: BTreeMap<u16, Tenant>,
    is_writing: bool,
    /// Shards with writes that wait.
    waiting: PortSet,
    /// The end of each tenant's farthest write, in bytes.
    ends: BTreeMap<u16, u64>,
}

#[derive(Default)]
struct Tenant {
    weight: u64,
    /// Bytes of admitted writes that have not ended.
    admitted: u64,
    /// Bytes of ended writes whose writeback has not begun.
    cached: Span,
    /// Bytes whose writeback, in a round or by a flush, has begun.
    writing: u64,
}

/// A number of written bytes, and the range of the file that contains them.
#[derive(Clone, Copy, Default)]
struct Span {
    bytes: u64,
    start: u64,
    end: u64,
}

/// A round of write-back; a thread that may block carries it out with [`Dirty::run`].
pub struct Round {
    file: u16,
    spans: Vec<(u16, Span)>,
}

impl Round {
    /// The number of the file.
    pub fn file(&self) -> u16 {
        self.file
    }
}

impl Span {
    fn add(&mut self, start: u64, length: u64) {
        let end = start.saturating_add(length);
        if self.bytes == 0 {
            (self.start, self.end) = (start, end);
        }
        (self.start, self.end) = (self.start.min(start), self.end.max(end));
        self.bytes = (self.bytes + length).min(self.end - self.start);
    }

    /// Splits the span into up to [`PIECES`] pieces, and distributes its bytes over them in
    /// proportion.
    fn pieces(self) -> impl Iterator<Item = Span> {
        let Span { bytes, start, end } = self;
        let step = (end - start).div_ceil((bytes / LEAST_PIECE).clamp(1, PIECES)).max(1);
        // Each piece has the difference of two rounded sums, so that no byte is lost by rounding.
        let until = move |at: u64| {
            let part = u128::from(bytes) * u128::from(at - start);
            (part / u128::from((end - start).max(1))) as u64
        };
        (start..end).step_by(step as usize).map(move |start| {
            let end = (start + step).min(end);
            Span { bytes: until(end) - until(start), start, end }
        })
    }
}

impl Tenant {
    fn dirty(&self) -> u64 {
        self.admitted + self.cached.bytes + self.writing
    }
}

impl File {
    fn new() -> File {
        File {
            bound: LEAST,
            tenants: BTreeMap::new(),
            is_writing: false,
            waiting: PortSet::EMPTY,
            ends: BTreeMap::new(),
        }
    }

    /// Whether a tenant may have more dirty bytes.
    fn has_room(&self, tenant: u16) -> bool {
        let Some(own) = self.tenants.get(&tenant) else { return true };
        let weights: u64 = self.tenants.values().map(|tenant| tenant.weight).sum();
        let part = u128::from(self.bound) * u128::from(own.weight) / u128::from(weights.max(1));
        own.dirty() == 0 || u128::from(own.dirty()) < part
    }

    /// Begins a round if one is due.
    fn round(&mut self, file: u16) -> Option<Round> {
        let cached: u64 = self.tenants.values().map(|tenant| tenant.cached.bytes).sum();
        let is_due = cached > 0 && (cached >= self.bound / 4 || !self.waiting.is_empty());
        if self.is_writing || !is_due {
            return None;
        }
        self.is_writing = true;
        let mut spans = Vec::new();
        for (&number, tenant) in &mut self.tenants {
            let span = std::mem::take(&mut tenant.cached);
            if span.bytes > 0 {
                tenant.writing += span.bytes;
                spans.push((number, span));
            }
        }
        Some(Round { file, spans })
    }

    /// Adjusts the bound to the speed of a round, which has written `bytes` in `time`.
    fn measure(&mut self, bytes: u64, time: Duration) {
        let sample = u128::from(bytes) * TARGET.as_nanos() / time.as_nanos().max(1);
        let sample = sample.min(u128::from(self.bound) * 2) as u64;
        if sample > self.bound || bytes >= self.bound / 8 {
            self.bound = sample.max(LEAST);
        }
    }

    /// Changes a tenant's counts; returns the shards to wake.
    fn change(&mut self, tenant: u16, change: impl FnOnce(&mut Tenant)) -> PortSet {
        let Some(own) = self.tenants.get_mut(&tenant) else { return PortSet::EMPTY };
        let before = own.dirty();
        change(own);
        if own.dirty() == 0 {
            self.tenants.remove(&tenant);
        } else if own.dirty() >= before {
            return PortSet::EMPTY;
        }
        std::mem::take(&mut self.waiting)
    }
}

impl Dirty {
    /// The dirty bytes of a run without writes yet; `wakers` wakes its shards, and `served` counts
    /// the service.
    pub fn new(wakers: Arc<Wakers>, served: Arc<Served>) -> Dirty {
        Dirty { files: Mutex::default(), changes: AtomicU64::new(0), wakers, served }
    }

    fn files(&self) -> MutexGuard<'_, BTreeMap<u16, File>> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A number that changes when waiting writes may be admitted.
    #[inline]
    pub fn changes(&self) -> u64 {
        self.changes.load(Ordering::Acquire)
    }

    /// Makes these shards retry their waiting writes. A shard adds itself to the set before it
    /// reads [`Self::changes`] again, so it either reads the new number or is woken.
    fn wake(&self, shards: PortSet) {
        if !shards.is_empty() {
            self.changes.fetch_add(1, Ordering::Release);
            self.wakers.wake_all(shards);
        }
    }

    /// Admits a write of a tenant of this weight. False if the write has to wait; its shard is
    /// woken when the write may be admitted. Also returns the round that is to begin, if one is
    /// due.
    pub fn admit(
        &self,
        file: u16,
        tenant: u16,
        length: u32,
        weight: u64,
        shard: PortId,
    ) -> (bool, Option<Round>) {
        let mut files = self.files();
        let of = files.entry(file).or_insert_with(File::new);
        let has_room = of.has_room(tenant);
        if !has_room {
            of.waiting.insert(shard);
            return (false, of.round(file));
        }
        let own = of.tenants.entry(tenant).or_default();
        (own.weight, own.admitted) = (weight, own.admitted + u64::from(length));
        (true, None)
    }

    /// Ends an admitted write; `is_cached` if the cache has its data. Returns the round that is to
    /// begin, if one is due.
    pub fn ended(
        &self,
        file: u16,
        tenant: u16,
        offset: u64,
        length: u32,
        is_cached: bool,
    ) -> Option<Round> {
        let mut files = self.files();
        let of = files.get_mut(&file)?;
        let woken = of.change(tenant, |own| {
            own.admitted -= u64::from(length).min(own.admitted);
            if is_cached {
                own.cached.add(offset, length.into());
            }
        });
        let end = of.ends.entry(tenant).or_default();
        *end = (*end).max(offset.saturating_add(length.into()));
        let round = of.round(file);
        drop(files);
        self.wake(woken);
        round
    }

    /// Begins a tenant's flush, which writes back its dirty bytes. Returns their number, and the
    /// end of the tenant's farthest write. If the tenant has grown, this may be beyond the end that
    /// the flush's client knows.
    pub fn flush(&self, file: u16, tenant: u16) -> (u64, u64) {
        let mut files = self.files();
        let Some(of) = files.get_mut(&file) else { return (0, 0) };
        let end = of.ends.get(&tenant).copied().unwrap_or(0);
        let Some(own) = of.tenants.get_mut(&tenant) else { return (0, end) };
        let bytes = std::mem::take(&mut own.cached).bytes;
        own.writing += bytes;
        (bytes, end)
    }

    /// Forgets the farthest writes of a tenant, because its number now belongs to another tenant.
    pub fn forget(&self, tenant: u16) {
        for file in self.files().values_mut() {
            file.ends.remove(&tenant);
        }
    }

    /// Records that `bytes` of a tenant, whose write-back had begun, are on the disk.
    pub fn written(&self, file: u16, tenant: u16, bytes: u64) {
        let mut files = self.files();
        let Some(of) = files.get_mut(&file) else { return };
        let woken = of.change(tenant, |own| own.writing -= bytes.min(own.writing));
        // This is under the lock, because the counter may have only one writer at a time.
        self.served.written(tenant, bytes);
        drop(files);
        self.wake(woken);
    }

    /// Carries out a round, and each further round that is due when it has ended. May block on the
    /// disk.
    pub fn run(&self, mut round: Round, write_out: &mut WriteOut<'_>) {
        loop {
            let begun = Instant::now();
            let spans = round.spans.iter();
            let pieces =
                spans.flat_map(|&(tenant, span)| span.pieces().map(move |of| (tenant, of)));
            let mut pieces = pieces.peekable();
            while let Some((tenant, piece)) = pieces.next() {
                // The next piece is submitted before the wait for this one. No further piece is
                // submitted, since flushes of other tenants wait behind the submitted pieces.
                if let Some((_, next)) = pieces.peek() {
                    write_out(next.start..next.end, false);
                }
                write_out(piece.start..piece.end, true);
                self.written(round.file, tenant, piece.bytes);
            }
            let bytes = round.spans.iter().map(|(_, span)| span.bytes).sum();
            let mut files = self.files();
            let Some(of) = files.get_mut(&round.file) else { return };
            of.measure(bytes, begun.elapsed());
            of.is_writing = false;
            let (next, woken) = (of.round(round.file), std::mem::take(&mut of.waiting));
            drop(files);
            // The round may have raised the bound, so waiting writes are retried.
            self.wake(woken);
            match next {
                Some(next) => round = next,
                None => return,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::observe::interference::Observed;

    const PIECE: u32 = 64 << 10;
    const SHARD: PortId = PortId(0);

    fn dirty() -> (Dirty, Arc<Wakers>, Arc<Served>) {
        let (wakers, served) = (Arc::new(Wakers::new(1).unwrap()), Arc::new(Served::new(1)));
        (Dirty::new(wakers.clone(), served.clone()), wakers, served)
    }

    /// A tenant writes pieces to the cache until it has to wait. Returns their number, and the
    /// first round that was due.
    fn fill(all: &Dirty, tenant: u16, weight: u64) -> (u64, Option<Round>) {
        let (mut pieces, mut first) = (0, None);
        loop {
            let (has_room, round) = all.admit(0, tenant, PIECE, weight, SHARD);
            first = first.or(round);
            if !has_room {
                return (pieces, first);
            }
            let offset = (u64::from(tenant) << 30) + pieces * u64::from(PIECE);
            first = first.or(all.ended(0, tenant, offset, PIECE, true));
            pieces += 1;
        }
    }

    #[test]
    fn a_tenant_waits_when_its_part_is_dirty_and_goes_on_when_the_disk_has_some_of_it() {
        let (all, wakers, _) = dirty();
        let (pieces, round) = fill(&all, 0, 100);
        assert_eq!(pieces, LEAST / u64::from(PIECE), "alone it has all of the bound");
        let round = round.expect("a quarter of the bound is dirty");
        assert_eq!(round.spans[0].1.bytes, LEAST / 4);
        let (pieces, none) = fill(&all, 1, 100);
        assert_eq!(pieces, LEAST / u64::from(PIECE) / 2, "two of one weight have a half each");
        assert!(none.is_none(), "one round at a time");
        wakers.take_pending(0);
        let (seen, mut waited, mut woken) = (all.changes(), 0, Vec::new());
        all.run(round, &mut |_, waits| {
            if wakers.take_pending(0) {
                woken.push(waited);
            }
            waited += u64::from(waits);
        });
        assert_eq!(woken, [1], "when the first piece is written");
        assert!(waited > PIECES && all.changes() > seen);
        let (has_room, _) = all.admit(0, 0, PIECE, 100, SHARD);
        assert!(has_room);
    }

    #[test]
    fn parts_are_by_weight_and_everybody_has_one() {
        let (all, _, _) = dirty();
        let held: Vec<_> = [(0, 300), (1, 100), (2, 1)]
            .map(|(tenant, weight)| all.admit(0, tenant, 1, weight, SHARD).0)
            .into();
        assert_eq!(held, [true; 3]);
        let pieces =
            [(0, 300), (1, 100), (2, 1)].map(|(tenant, weight)| fill(&all, tenant, weight).0);
        assert_eq!(pieces, [12, 4, 1]);
    }

    #[test]
    fn the_bound_follows_the_disk() {
        let (mut file, second) = (File::new(), Duration::from_secs(1));
        file.measure(60 << 20, second);
        assert_eq!(file.bound, 2 * LEAST, "it doubles at most");
        (0..9).for_each(|_| file.measure(60 << 20, second));
        assert_eq!(file.bound, 30 << 20);
        file.measure(1 << 20, second);
        assert_eq!(file.bound, 30 << 20, "latency says nothing about the speed");
        file.measure(15 << 20, second);
        assert_eq!(file.bound, 15 << 19);
        file.measure(1 << 20, 100 * second);
        assert_eq!(file.bound, LEAST);
    }

    #[test]
    fn a_flush_takes_its_tenants_bytes_and_a_write_that_fails_leaves_none() {
        let (all, _, _) = dirty();
        for tenant in [0, 1] {
            assert!(all.admit(0, tenant, 4096, 1, SHARD).0);
        }
        assert!(all.ended(0, 0, 8192, 4096, true).is_none(), "little is dirty, and nobody waits");
        all.ended(0, 1, 0, 4096, false);
        assert_eq!(all.flush(0, 0), (4096, 12_288));
        assert_eq!(all.flush(0, 0), (0, 12_288), "by the first one");
        assert_eq!(all.files()[&0].tenants.len(), 1);
        all.written(0, 0, 4096);
        assert!(all.files()[&0].tenants.is_empty());
        all.forget(0);
        assert_eq!(all.flush(0, 0), (0, 0), "its number is another tenant's");
    }

    #[test]
    fn a_write_is_served_when_the_disk_has_it() {
        let (all, _, served) = dirty();
        let mut observed = Observed::new(served, 0);
        let round = fill(&all, 1, 1).1.unwrap();
        observed.arrived(0, fairq_core::Tag(0));
        all.run(round, &mut |_, _| {});
        observed.ended(fairq_core::Tag(0), 0, 0, 1_000_000);
        let row = observed.matrix()[0];
        assert!(row[1] > 900_000, "{} of a million", row[1]);
    }

    #[derive(Clone, Debug)]
    enum Event {
        Write(u16, u32),
        End(usize, bool),
        Flush(u16),
        Run,
    }

    proptest! {
        /// For any sequence of events: a waiting tenant is made to retry, and no byte is counted
        /// once all bytes are written.
        #[test]
        fn nobody_waits_for_ever_and_no_byte_stays(
            events in prop::collection::vec(prop_oneof![
                4 => (0..3_u16, 1..400_000_u32).prop_map(|(tenant, length)| Event::Write(tenant, length)),
                4 => (any::<usize>(), any::<bool>()).prop_map(|(which, fails)| Event::End(which, fails)),
                1 => (0..3_u16).prop_map(Event::Flush),
                1 => Just(Event::Run),
            ], 0..100),
        ) {
            let (all, _, _) = dirty();
            let (mut writes, mut flushes, mut rounds) = (Vec::new(), Vec::new(), Vec::new());
            let mut refused = None;
            let end = |(tenant, length, offset): (u16, u32, u64), is_cached| {
                all.ended(0, tenant, offset, length, is_cached)
            };
            for (step, event) in events.into_iter().enumerate() {
                match event {
                    Event::Write(tenant, length) => {
                        let seen = all.changes();
                        let (has_room, round) = all.admit(0, tenant, length, u64::from(tenant) + 1, SHARD);
                        rounds.extend(round);
                        if has_room {
                            writes.push((tenant, length, step as u64 * 77_777));
                        } else {
                            refused = Some(seen);
                        }
                    }
                    Event::End(which, fails) if !writes.is_empty() => {
                        let write = writes.swap_remove(which % writes.len());
                        rounds.extend(end(write, !fails));
                    }
                    Event::End(..) => {}
                    Event::Flush(tenant) => flushes.push((tenant, all.flush(0, tenant).0)),
                    Event::Run => rounds.drain(..).for_each(|round| all.run(round, &mut |_, _| {})),
                }
                prop_assert!(rounds.len() <= 1);
            }
            rounds.extend(writes.into_iter().filter_map(|write| end(write, true)));
            flushes.into_iter().for_each(|(tenant, bytes)| all.written(0, tenant, bytes));
            rounds.into_iter().for_each(|round| all.run(round, &mut |_, _| {}));
            prop_assert!(refused.is_none_or(|seen| all.changes() > seen));
            for tenant in 0..3 {
                let (bytes, _) = all.flush(0, tenant);
                all.written(0, tenant, bytes);
            }
            let files = all.files();
            prop_assert!(files.values().all(|of| of.tenants.is_empty() && !of.is_writing));
        }
    }
}

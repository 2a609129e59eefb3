//! Write-back errors, which are recorded for every tenant whose data may be lost.
//!
//! **Problem.** A write to the page cache is answered before it is on the disk. If the disk then
//! fails the write-back, the kernel drops the data and reports the error once, to the next sync of
//! the file. So a tenant that wrote nothing may get the error, and the flush of the tenant whose
//! data are lost may succeed.
//!
//! **Model.** Each tenant has counts of the writes that have begun and ended. A flush *covers* the
//! writes that had ended when it arrived. If it succeeds, these writes are on stable storage; a
//! tenant is *clean* if all writes that it has begun are on stable storage. When a sync of a file
//! fails, or the file reports a failed write-back
//! ([`Device::write_back_failed`](crate::device::Device::write_back_failed)), all tenants of that
//! file that are not clean *fail*, since the kernel does not report which of their writes was lost.
//! A failed tenant's flushes and durable writes return `EIO` until the operator clears the error. A
//! clean tenant's flush succeeds whatever the result of its sync, since none of its data can be
//! lost.
//!
//! **Example.** a writes, b does not. b flushes, and the kernel reports a's error to b's sync. This
//! marks a as failed, and b's flush succeeds. a's flush returns `EIO`, although a's own sync
//! reports no error.
//!
//! **One lock** is held from the query whether a write-back has failed until the tenants are
//! marked. So an error that the kernel reports to one shard is known when any later sync ends. The
//! lock is taken at the end of flushes and durable writes, which wait for a disk anyway.
//!
//! *Memory ordering.* A shard counts in words that it alone writes (Release), and other shards sum
//! them (Acquire). The end of a write is counted before its answer, so it is counted when its
//! client has the answer and then flushes through any shard. The start of a write is counted before
//! the kernel has its data; the kernel's own ordering of data, write-back and error makes the count
//! visible to the shard that receives the error. If a count of ended writes is read too early, the
//! flush covers fewer writes; if a count of begun writes is read too late, it includes a write that
//! the error cannot concern.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use fairq_core::Op;

/// The most names in one line of the log.
const NAMES: usize = 10;

/// The writes of all tenants of one run, and the tenants that have failed.
pub struct WriteBack {
    /// The counts, by shard and tenant.
    writes: Box<[Box<[Writes]>]>,
    accounts: Mutex<Vec<Account>>,
}

/// The counts of one tenant's writes on one shard.
#[derive(Default)]
struct Writes {
    begun: AtomicU64,
    ended: AtomicU64,
}

/// A tenant.
#[derive(Clone, Default)]
struct Account {
    /// Its name and its file; `None` for a number without a tenant.
    owner: Option<(String, u16)>,
    /// The number of its writes that are on stable storage.
    settled: u64,
    /// The errno with which it has failed, if it has.
    failed: Option<i32>,
}

impl WriteBack {
    /// The accounts of `shards` shards and `tenants` numbers, none of which has a tenant yet.
    pub fn new(shards: usize, tenants: usize) -> WriteBack {
        let writes = |_| (0..tenants).map(|_| Writes::default()).collect();
        WriteBack {
            writes: (0..shards).map(writes).collect(),
            accounts: Mutex::new(vec![Account::default(); tenants]),
        }
    }

    /// Assigns a number to a tenant with this file; `None` frees the number.
    pub fn assign(&self, tenant: u16, owner: Option<(&str, u16)>) {
        // The writes of an earlier owner do not count for the new one, which begins clean.
        let settled = self.begun(tenant.into());
        if let Some(account) = self.accounts().get_mut(usize::from(tenant)) {
            let owner = owner.map(|(name, file)| (name.to_owned(), file));
            *account = Account { owner, settled, failed: None };
        }
    }

    /// Renames the tenant with a number.
    pub fn rename(&self, tenant: u16, name: &str) {
        let mut accounts = self.accounts();
        let account = accounts.get_mut(usize::from(tenant));
        if let Some((old, _)) = account.and_then(|account| account.owner.as_mut()) {
            *old = name.to_owned();
        }
    }

    /// Counts a request that begins; for a flush, returns the number of writes that it covers.
    #[inline]
    pub(crate) fn begin(&self, shard: usize, tenant: u16, op: Op) -> u64 {
        match op {
            Op::Read => return 0,
            Op::Flush => return self.covered(tenant),
            Op::Write | Op::WriteZeroes | Op::Discard => {}
        }
        add_one(&self.writes[shard][usize::from(tenant)].begun);
        0
    }

    /// Counts a request that has ended.
    #[inline]
    pub(crate) fn end(&self, shard: usize, tenant: u16, op: Op) {
        if matches!(op, Op::Write | Op::WriteZeroes | Op::Discard) {
            add_one(&self.writes[shard][usize::from(tenant)].ended);
        }
    }

    /// The number of writes that a flush would cover now.
    #[cold]
    fn covered(&self, tenant: u16) -> u64 {
        self.sum(tenant.into(), |writes| &writes.ended)
    }

    /// Ends a flush (`covers` is the number of writes that it covers) or a durable write, whose
    /// sync has returned this errno or 0. `ask` returns whether a write-back of a file has failed
    /// since the last query. Returns the errno for the answer.
    pub(crate) fn synced(
        &self,
        tenant: u16,
        covers: Option<u64>,
        errno: i32,
        ask: impl FnOnce(u16) -> bool,
    ) -> i32 {
        let mut accounts = self.accounts();
        // A number without a tenant, as in a load run, has no account: the kernel's result is
        // returned.
        let Some((_, file)) = accounts[usize::from(tenant)].owner else { return errno };
        // A failed sync of a flush concerns the whole file, and so all its tenants that are not
        // clean. A durable write's error concerns only its own data.
        if ask(file) || covers.is_some() && errno != 0 {
            let is_concerned = |tenant, account: &Account| self.begun(tenant) != account.settled;
            fail(&mut accounts, file, if errno == 0 { libc::EIO } else { errno }, is_concerned);
        } else if errno != 0 && !is_refusal(errno) {
            fail(&mut accounts, file, errno, |other, _| other == usize::from(tenant));
        }
        let account = &mut accounts[usize::from(tenant)];
        match (account.failed, covers) {
            (Some(_), _) => libc::EIO,
            (None, None) => errno,
            (None, Some(covers)) => {
                account.settled = account.settled.max(covers);
                0
            }
        }
    }

    /// Marks all tenants of a file as failed, because the file could not be synced before it was
    /// served: their writes under an earlier server may be lost.
    pub(crate) fn fail_all(&self, file: u16, errno: i32) {
        fail(&mut self.accounts(), file, errno, |_, _| true);
    }

    /// Marks a tenant as failed, because an earlier server recorded that its data may be lost.
    pub(crate) fn lose(&self, tenant: u16, errno: i32) {
        let mut accounts = self.accounts();
        let owner = accounts.get(usize::from(tenant)).and_then(|account| account.owner.as_ref());
        if let Some(file) = owner.map(|(_, file)| *file) {
            fail(&mut accounts, file, errno, |other, _| other == usize::from(tenant));
        }
    }

    /// The tenants that have failed, each with its errno.
    pub(crate) fn failed(&self) -> Vec<(u16, i32)> {
        let accounts = self.accounts();
        let failed = (0..).zip(&*accounts).filter(|(_, account)| account.owner.is_some());
        failed.filter_map(|(tenant, account)| Some((tenant, account.failed?))).collect()
    }

    /// Clears a tenant's error for the operator, so that its flushes return the kernel's results
    /// again. Returns the errno with which it had failed.
    pub(crate) fn clear(&self, tenant: u16) -> Option<i32> {
        self.accounts().get_mut(usize::from(tenant))?.failed.take()
    }

    /// Whether a tenant has writes that are not known to be on stable storage, and the errno with
    /// which it has failed. This is passed on to the next program in this process.
    pub(crate) fn left(&self, tenant: u16) -> (bool, Option<i32>) {
        let accounts = self.accounts();
        let account = accounts.get(usize::from(tenant));
        account.map_or((false, None), |account| {
            (self.begun(tenant.into()) != account.settled, account.failed)
        })
    }

    /// Restores the result of [`WriteBack::left`] in the previous program; called before any shard
    /// runs.
    pub(crate) fn go_on(&self, tenant: u16, (is_dirty, failed): (bool, Option<i32>)) {
        if is_dirty && let Some(writes) = self.writes.first() {
            add_one(&writes[usize::from(tenant)].begun);
            add_one(&writes[usize::from(tenant)].ended);
        }
        if let Some(account) = self.accounts().get_mut(usize::from(tenant)) {
            account.failed = failed;
        }
    }

    fn begun(&self, tenant: usize) -> u64 {
        self.sum(tenant, |writes| &writes.begun)
    }

    fn sum(&self, tenant: usize, count: impl Fn(&Writes) -> &AtomicU64) -> u64 {
        self.writes.iter().map(|shard| count(&shard[tenant]).load(Ordering::Acquire)).sum()
    }

    fn accounts(&self) -> MutexGuard<'_, Vec<Account>> {
        self.accounts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Adds 1 to a word that only this thread writes.
#[inline]
fn add_one(count: &AtomicU64) {
    count.store(count.load(Ordering::Relaxed) + 1, Ordering::Release);
}

/// Whether a durable write was refused before the kernel accepted any of its data. Then only that
/// write is lost, and its client receives the error.
fn is_refusal(errno: i32) -> bool {
    matches!(
        errno,
        libc::ENOSPC | libc::EDQUOT | libc::EFBIG | libc::EINVAL | libc::EOPNOTSUPP | libc::EPERM
    )
}

/// Marks the tenants of a file for which `is_concerned` is true as failed, and logs this.
fn fail(
    accounts: &mut [Account],
    file: u16,
    errno: i32,
    is_concerned: impl Fn(usize, &Account) -> bool,
) {
    let mut names = Vec::new();
    for (tenant, account) in accounts.iter_mut().enumerate() {
        let Some((name, _)) = account.owner.as_ref().filter(|(_, of)| *of == file) else {
            continue;
        };
        if account.failed.is_none() && is_concerned(tenant, account) {
            names.push(name.clone());
            account.failed = Some(errno);
        }
    }
    if names.is_empty() {
        return;
    }
    let count = names.len();
    names.truncate(NAMES);
    tracing::error!(
        tenants = names.join(", "),
        count,
        error = %std::io::Error::from_raw_os_error(errno),
        "data that these tenants wrote could not be put on stable storage and may be lost: their \
         flushes and FUA writes fail until the storage is repaired and the operator has run \
         `fairq ctl clear-error TENANT`"
    );
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const EIO: i32 = libc::EIO;

    fn three_tenants() -> WriteBack {
        let all = WriteBack::new(2, 3);
        all.assign(0, Some(("a", 0)));
        all.assign(1, Some(("b", 0)));
        all.assign(2, Some(("c", 1)));
        all
    }

    impl WriteBack {
        fn write(&self, shard: usize, tenant: u16) {
            self.begin(shard, tenant, Op::Write);
            self.end(shard, tenant, Op::Write);
        }

        fn flush(&self, tenant: u16, errno: i32, is_reported: bool) -> i32 {
            let covers = self.begin(0, tenant, Op::Flush);
            self.end(0, tenant, Op::Flush);
            self.synced(tenant, Some(covers), errno, |_| is_reported)
        }
    }

    #[test]
    fn the_error_is_the_writers_whoever_the_kernel_tells() {
        let all = three_tenants();
        all.write(0, 0);
        all.write(1, 2);
        assert_eq!(all.flush(1, EIO, true), 0, "b wrote nothing");
        assert_eq!(all.failed(), [(0, EIO)]);
        for _ in 0..3 {
            assert_eq!(all.flush(0, 0, false), EIO);
            assert_eq!(all.synced(0, None, 0, |_| false), EIO, "a durable write");
        }
        assert_eq!(all.flush(2, 0, false), 0, "another file");
        assert_eq!((all.clear(0), all.clear(0)), (Some(EIO), None));
        assert_eq!(all.flush(0, 0, false), 0);
        assert_eq!(all.flush(0, EIO, true), 0, "a is clean now");
    }

    #[test]
    fn a_flush_settles_what_had_ended_when_it_came() {
        let all = three_tenants();
        all.write(0, 0);
        let covers = all.begin(0, 0, Op::Flush);
        all.begin(1, 0, Op::WriteZeroes);
        assert_eq!(all.synced(0, Some(covers), 0, |_| false), 0);
        assert_eq!(all.flush(1, 0, true), 0);
        assert_eq!(all.failed(), [(0, EIO)], "the write that was under way may be lost");
    }

    #[test]
    fn a_durable_write_that_fails_is_followed_by_flushes_that_fail() {
        let all = three_tenants();
        all.write(0, 0);
        all.write(0, 1);
        assert_eq!(all.synced(0, None, libc::ENOSPC, |_| false), libc::ENOSPC, "it was refused");
        assert_eq!(all.failed(), []);
        assert_eq!(all.synced(0, None, EIO, |_| false), EIO);
        assert_eq!(all.failed(), [(0, EIO)], "the others' data are not concerned");
        assert_eq!(all.synced(1, None, libc::ENOSPC, |_| true), EIO);
        assert_eq!(all.failed(), [(0, EIO), (1, libc::ENOSPC)], "of the file's write-back");
    }

    #[test]
    fn a_number_begins_anew_with_each_tenant() {
        let all = three_tenants();
        all.fail_all(0, EIO);
        assert_eq!(all.failed(), [(0, EIO), (1, EIO)], "they wrote before the start, maybe");
        all.assign(0, Some(("d", 1)));
        all.assign(1, None);
        assert_eq!((all.failed(), all.flush(0, 0, false)), (vec![], 0));
        all.lose(2, EIO);
        assert_eq!((all.failed(), all.flush(2, 0, false)), (vec![(2, EIO)], EIO));
        all.lose(1, EIO);
        assert_eq!(all.flush(1, EIO, false), EIO, "nothing is kept for nobody");
    }

    #[derive(Clone, Debug)]
    enum Event {
        Write(usize, u16),
        Flush(u16, bool),
        Clear(u16),
    }

    proptest! {
        /// Compares this with a plain model, whose storage loses all unsynced data at each failure.
        #[test]
        fn no_flush_succeeds_after_data_were_lost(
            events in prop::collection::vec(prop_oneof![
                (0..2_usize, 0..3_u16).prop_map(|(shard, tenant)| Event::Write(shard, tenant)),
                (0..3_u16, any::<bool>()).prop_map(|(tenant, fails)| Event::Flush(tenant, fails)),
                (0..3_u16).prop_map(Event::Clear),
            ], 0..60),
        ) {
            let (all, file_of) = (three_tenants(), [0, 0, 1]);
            // Whether each tenant has data that are not on the disk, and whether it has lost data.
            let (mut dirty, mut lost) = ([false; 3], [false; 3]);
            for event in events {
                match event {
                    Event::Write(shard, tenant) => {
                        all.write(shard, tenant);
                        dirty[usize::from(tenant)] = true;
                    }
                    Event::Clear(tenant) => {
                        let had_lost = std::mem::take(&mut lost[usize::from(tenant)]);
                        prop_assert_eq!(all.clear(tenant).is_some(), had_lost);
                    }
                    Event::Flush(tenant, fails) => {
                        let file = file_of[usize::from(tenant)];
                        for other in (0..3).filter(|&other| file_of[other] == file) {
                            lost[other] |= fails && dirty[other];
                        }
                        let is_lost = lost[usize::from(tenant)];
                        let errno = all.flush(tenant, if fails { EIO } else { 0 }, fails);
                        prop_assert_eq!(errno != 0, is_lost);
                        dirty[usize::from(tenant)] &= is_lost;
                    }
                }
            }
        }
    }
}

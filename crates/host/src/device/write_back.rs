//! Write-back errors, kept for every tenant that they may concern.
//!
//! **Problem.** A write into the page cache is answered before it is on the disk. If the disk then
//! refuses it, the kernel drops the data and reports that once, to whoever syncs the file next: a
//! tenant that wrote nothing may get the error, and the tenant whose data are lost hears that all
//! is well.
//!
//! **Model.** Each tenant has counts of the writes that have begun and ended. A flush *covers* the
//! writes that had ended when it came, and *settles* them if it succeeds; a tenant is *clean* when
//! all writes that have begun are settled. When a sync of a file fails, or the file reports a
//! failed write-back ([`Device::write_back_failed`](crate::device::Device::write_back_failed)),
//! all tenants of that file that are not clean *fail*: which of their writes was lost is not
//! known. A failed tenant's flushes and durable writes get `EIO` until the operator clears that.
//! A clean tenant's flush succeeds whatever its sync said, since nothing of it can be lost.
//!
//! **Example.** a writes, b does not. b flushes, and the kernel gives that sync the error: a has
//! failed, and b's flush succeeds. a's flush, whose own sync finds nothing any more, gets `EIO`.
//!
//! **One lock** is held from the question whether a write-back has failed to its consequence. So
//! an error that one shard takes from the kernel is known to every sync that ends later. It is
//! taken at the end of flushes and durable writes, which wait for a disk.
//!
//! *Memory ordering.* A shard counts in words that it alone writes (Release), others add them up
//! (Acquire). A write's end is counted before it is answered, so a client that has the answer and
//! then flushes, by any shard, finds it counted. A write's begin is counted before the kernel has
//! its data; the kernel's own ordering, of data, their write-back and its error, carries that to
//! the shard which is told the error. An ended count that is read early covers less, a begun count
//! that is read late is of a write that the error cannot be about.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use fairq_core::Op;

/// Names in one line of the log.
const NAMES: usize = 10;

/// The writes of all tenants of one run, and which of them have failed.
pub struct WriteBack {
    /// By shard and tenant.
    writes: Box<[Box<[Writes]>]>,
    accounts: Mutex<Vec<Account>>,
}

/// What one shard has done for one tenant.
#[derive(Default)]
struct Writes {
    begun: AtomicU64,
    ended: AtomicU64,
}

/// A tenant.
#[derive(Clone, Default)]
struct Account {
    /// Its name and its file; nothing is kept for a number that nobody has.
    owner: Option<(String, u16)>,
    /// How many of its writes are on stable storage.
    settled: u64,
    /// The error that it has failed with.
    failed: Option<i32>,
}

impl WriteBack {
    /// Of so many shards and tenants, nobody's yet.
    pub fn new(shards: usize, tenants: usize) -> WriteBack {
        let writes = |_| (0..tenants).map(|_| Writes::default()).collect();
        WriteBack {
            writes: (0..shards).map(writes).collect(),
            accounts: Mutex::new(vec![Account::default(); tenants]),
        }
    }

    /// Gives a number to a tenant with this file, or to nobody.
    pub fn assign(&self, tenant: u16, owner: Option<(&str, u16)>) {
        // What an earlier owner of the number wrote is not the new one's, which begins clean.
        let settled = self.begun(tenant.into());
        if let Some(account) = self.accounts().get_mut(usize::from(tenant)) {
            let owner = owner.map(|(name, file)| (name.to_owned(), file));
            *account = Account { owner, settled, failed: None };
        }
    }

    /// The tenant with a number has another name.
    pub fn rename(&self, tenant: u16, name: &str) {
        let mut accounts = self.accounts();
        let account = accounts.get_mut(usize::from(tenant));
        if let Some((old, _)) = account.and_then(|account| account.owner.as_mut()) {
            *old = name.to_owned();
        }
    }

    /// A request comes; gives what it covers, if it is a flush.
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

    /// A request has ended.
    #[inline]
    pub(crate) fn end(&self, shard: usize, tenant: u16, op: Op) {
        if matches!(op, Op::Write | Op::WriteZeroes | Op::Discard) {
            add_one(&self.writes[shard][usize::from(tenant)].ended);
        }
    }

    /// What a flush that comes now covers.
    #[cold]
    fn covered(&self, tenant: u16) -> u64 {
        self.sum(tenant.into(), |writes| &writes.ended)
    }

    /// A flush (with what it covers) or a durable write has ended with this errno, or 0. `ask`
    /// says whether a write-back of a file has failed since it was last asked. Gives the errno to
    /// answer.
    pub(crate) fn synced(
        &self,
        tenant: u16,
        covers: Option<u64>,
        errno: i32,
        ask: impl FnOnce(u16) -> bool,
    ) -> i32 {
        let mut accounts = self.accounts();
        // Nothing is kept for a number without a tenant, as in a load run: the kernel's word holds.
        let Some((_, file)) = accounts[usize::from(tenant)].owner else { return errno };
        // A failed sync is about the whole file, so about all its tenants that are not clean. A
        // durable write's error is about its own data.
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

    /// A file could not be synced before anything was served from it: what its tenants wrote by an
    /// earlier server may be lost.
    pub(crate) fn fail_all(&self, file: u16, errno: i32) {
        fail(&mut self.accounts(), file, errno, |_, _| true);
    }

    /// The tenants that have failed, and with which error.
    pub(crate) fn failed(&self) -> Vec<(u16, i32)> {
        let accounts = self.accounts();
        let failed = (0..).zip(&*accounts).filter(|(_, account)| account.owner.is_some());
        failed.filter_map(|(tenant, account)| Some((tenant, account.failed?))).collect()
    }

    /// The operator knows: the tenant's flushes say again what the kernel says. Gives the error
    /// that it had failed with.
    pub(crate) fn clear(&self, tenant: u16) -> Option<i32> {
        self.accounts().get_mut(usize::from(tenant))?.failed.take()
    }

    /// Whether a tenant has written what is not known to be on stable storage, and the error that
    /// it has failed with: for the next program in this process.
    pub(crate) fn left(&self, tenant: u16) -> (bool, Option<i32>) {
        let accounts = self.accounts();
        let account = accounts.get(usize::from(tenant));
        account.map_or((false, None), |account| {
            (self.begun(tenant.into()) != account.settled, account.failed)
        })
    }

    /// What [`WriteBack::left`] was in the program before this one; before any shard runs.
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

/// Only this thread writes the word.
#[inline]
fn add_one(count: &AtomicU64) {
    count.store(count.load(Ordering::Relaxed) + 1, Ordering::Release);
}

/// Whether a durable write was refused before any of it was taken: nothing is lost then but what
/// its client is told of.
fn is_refusal(errno: i32) -> bool {
    matches!(
        errno,
        libc::ENOSPC | libc::EDQUOT | libc::EFBIG | libc::EINVAL | libc::EOPNOTSUPP | libc::EPERM
    )
}

/// Fails those of a file's tenants that `is_concerned` names, and says so.
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
         flushes and FUA writes fail until the storage is mended and `fairq ctl clear-error \
         TENANT` says so"
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
        assert_eq!(all.flush(1, EIO, false), EIO, "nothing is kept for nobody");
    }

    #[derive(Clone, Debug)]
    enum Event {
        Write(usize, u16),
        Flush(u16, bool),
        Clear(u16),
    }

    proptest! {
        /// Against a plain model, with storage that loses whatever is not on it at each failure.
        #[test]
        fn no_flush_succeeds_after_data_were_lost(
            events in prop::collection::vec(prop_oneof![
                (0..2_usize, 0..3_u16).prop_map(|(shard, tenant)| Event::Write(shard, tenant)),
                (0..3_u16, any::<bool>()).prop_map(|(tenant, fails)| Event::Flush(tenant, fails)),
                (0..3_u16).prop_map(Event::Clear),
            ], 0..60),
        ) {
            let (all, file_of) = (three_tenants(), [0, 0, 1]);
            // Whether a tenant has data that are not on the disk, and whether it has lost some.
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

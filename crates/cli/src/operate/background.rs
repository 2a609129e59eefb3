//! Work that may wait or take long runs in threads of its own, so that the control thread serves
//! other calls.
//!
//! The first call that needs such work starts it and is refused as unfinished; the server repeats
//! the call until the work is done. Names of users are resolved this way, because a directory
//! service may take seconds, and configurations are read this way, because they may have thousands
//! of tenants.

use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use fairq_config::refusal::Refusal;

/// The time that the control thread waits for work; most work ends within it.
const MOMENT: Duration = Duration::from_millis(2);
/// A result that no call has fetched for this time belongs to an abandoned call.
const UNFETCHED: Duration = Duration::from_secs(2);
/// The most threads of one kind; there is a bound because each of them may hang.
const MOST: usize = 16;

/// Work of one kind, by the key of the call that needs it.
pub(super) struct Background<T> {
    jobs: Vec<Job<T>>,
}

struct Job<T> {
    key: String,
    since: Instant,
    /// Time of the last call for the result.
    wanted: Instant,
    thread: Receiver<T>,
    result: Option<T>,
}

impl<T> Default for Background<T> {
    fn default() -> Background<T> {
        Background { jobs: Vec::new() }
    }
}

impl<T> Job<T> {
    /// Whether the job ends within `timeout`.
    fn is_over(&mut self, timeout: Duration) -> bool {
        if self.result.is_none() {
            self.result = match self.thread.recv_timeout(timeout) {
                Ok(result) => Some(result),
                Err(RecvTimeoutError::Timeout) => None,
                // The thread has panicked: the job is dropped, and the next call starts the work
                // again.
                Err(RecvTimeoutError::Disconnected) => return true,
            };
        }
        self.result.is_some()
    }
}

impl<T: Clone + Send + 'static> Background<T> {
    /// The result of `work`, which the first call with this key starts. While the work is not
    /// finished, the call gets a temporary refusal that names `what`. The result stays until
    /// [`forget`](Self::forget).
    pub(super) fn result(
        &mut self,
        key: &str,
        what: &str,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Refusal> {
        self.drop_unfetched();
        let place = match self.jobs.iter().position(|job| job.key == key) {
            Some(place) => place,
            None if self.jobs.len() == MOST => {
                let text = format!("{what}: {MOST} calls wait for such work: try again later");
                return Err(Refusal::new(text));
            }
            None => {
                self.begin(key, work)?;
                self.jobs.len() - 1
            }
        };
        let job = &mut self.jobs[place];
        job.wanted = Instant::now();
        if !job.is_over(MOMENT) {
            let seconds = job.since.elapsed().as_secs();
            let text = format!("{what}: not finished after {seconds} s: try again later");
            return Err(Refusal::temporary(text));
        }
        match &job.result {
            Some(result) => Ok(result.clone()),
            None => {
                self.forget(key);
                Err(Refusal::new(format!("{what}: the thread for it has ended: see the log")))
            }
        }
    }

    /// Whether a call with this key has started work whose result was not fetched yet. The call
    /// will be repeated soon.
    pub(super) fn is_begun(&mut self, key: &str) -> bool {
        self.drop_unfetched();
        let job = self.jobs.iter_mut().find(|job| job.key == key);
        job.map(|job| job.wanted = Instant::now()).is_some()
    }

    fn drop_unfetched(&mut self) {
        self.jobs
            .retain_mut(|job| job.wanted.elapsed() < UNFETCHED || !job.is_over(Duration::ZERO));
    }

    fn begin(
        &mut self,
        key: &str,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<(), Refusal> {
        let (sender, thread) = channel();
        // The receiver is gone when the server ends, and no call waits for the result then.
        let run = move || drop(sender.send(work()));
        std::thread::Builder::new()
            .name("fairq-config".into())
            .spawn(run)
            .map_err(|error| Refusal::new(format!("cannot start a thread: {error}")))?;
        let now = Instant::now();
        self.jobs.push(Job { key: key.into(), since: now, wanted: now, thread, result: None });
        Ok(())
    }

    /// Sets the result that the next call with this key gets; no work is started for it.
    pub(super) fn put(&mut self, key: &str, result: T) {
        let (now, (_, thread)) = (Instant::now(), channel());
        let (key, result) = (key.into(), Some(result));
        self.jobs.push(Job { key, since: now, wanted: now, thread, result });
    }

    /// Drops a result that was used; the next call with the key starts the work again.
    pub(super) fn forget(&mut self, key: &str) {
        self.jobs.retain(|job| job.key != key);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn work_is_begun_once_and_its_result_waits_for_the_call() {
        let (go_on, gate) = channel::<u32>();
        let mut work = Background::default();
        let wait = move || gate.recv().unwrap();
        let error = work.result("a", "a lookup", wait).unwrap_err();
        assert!(error.is_temporary() && error.to_string().starts_with("a lookup: not finished"));
        let twice = || unreachable!("it runs already");
        assert!(work.result("a", "a lookup", twice).unwrap_err().is_temporary());
        go_on.send(7).unwrap();
        let answer = loop {
            match work.result("a", "a lookup", twice) {
                Err(error) if error.is_temporary() => {}
                other => break other,
            }
        };
        assert_eq!((answer.unwrap(), work.result("a", "a lookup", twice).unwrap()), (7, 7));
        work.forget("a");
        let again = loop {
            match work.result("a", "a lookup", || 8) {
                Err(error) if error.is_temporary() => {}
                other => break other,
            }
        };
        assert_eq!(again.unwrap(), 8);
    }
}

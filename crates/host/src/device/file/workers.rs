//! The threads of one store, which make the calls that may wait for its file systems and devices.
//!
//! **Problem.** A call on a file may wait for ever: its file system is frozen, its disk hangs. A
//! shard that made such a call would stop with all its connections, and the control thread would
//! stop the whole server. io_uring's own workers do not help: a thread has one set of them for all
//! its files, and writes of files whose inodes fall into one of 64 classes wait for each other
//! there.
//!
//! **Model.** Each store has its own threads, at most [`MOST`], which make only its calls. One idle
//! thread is kept waiting, so that a shard never starts a thread: a thread that takes a job and
//! leaves no other waiting starts the next one. A thread that has waited for [`IDLE`] beside
//! another one ends. Threads are not joined, since they may wait for ever.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// The most threads of a store.
const MOST: usize = 32;
/// The longest time that a second idle thread waits for work.
const IDLE: Duration = Duration::from_secs(10);

/// A call, and the handling of its result.
pub(super) type Job = Box<dyn FnOnce() + Send>;

/// The threads of one store; they end when this is dropped.
pub(super) struct Workers {
    pool: Arc<Pool>,
}

struct Pool {
    state: Mutex<State>,
    work: Condvar,
    /// The most threads.
    most: usize,
    /// The CPUs of the threads: those of the thread that started the first one.
    cpus: Option<CpuSet>,
}

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    threads: usize,
    /// Threads that wait for work.
    idle: usize,
    is_over: bool,
}

impl Workers {
    /// The threads of a store.
    pub(super) fn start() -> std::io::Result<Workers> {
        Workers::at_most(MOST)
    }

    /// Up to `most` threads, of which one is started; an error if the system refuses that. They run
    /// on the CPUs of the calling thread.
    pub(super) fn at_most(most: usize) -> std::io::Result<Workers> {
        let cpus = sched_getaffinity(None).ok();
        let pool = Arc::new(Pool { state: Mutex::default(), work: Condvar::new(), most, cpus });
        pool.lock().threads = 1;
        pool.spawn()?;
        Ok(Workers { pool })
    }

    /// Adds a job, which begins after the earlier ones have begun.
    pub(super) fn push(&self, job: Job) {
        self.pool.lock().jobs.push_back(job);
        self.pool.work.notify_one();
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.pool.lock().is_over = true;
        self.pool.work.notify_all();
    }
}

impl Pool {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts a thread that is already counted.
    fn spawn(self: &Arc<Self>) -> std::io::Result<()> {
        let pool = self.clone();
        let started = std::thread::Builder::new().name("fairq-store".into()).spawn(move || {
            if let Some(cpus) = &pool.cpus {
                let _ = sched_setaffinity(None, cpus);
            }
            pool.work();
        });
        if started.is_err() {
            self.lock().threads -= 1;
        }
        started.map(drop)
    }

    /// Carries out jobs until the threads end.
    fn work(self: Arc<Self>) {
        let mut state = self.lock();
        loop {
            if let Some(job) = state.jobs.pop_front() {
                let is_last = state.idle == 0 && state.threads < self.most;
                state.threads += usize::from(is_last);
                drop(state);
                // Without another thread this one takes the next job when this job is finished.
                if is_last && let Err(error) = self.spawn() {
                    tracing::warn!(%error, "cannot start a thread for calls that may wait");
                }
                job();
                state = self.lock();
                continue;
            }
            // The thread ends only if there is no job: given jobs are carried out first.
            if state.is_over {
                break;
            }
            state.idle += 1;
            let waited = self.work.wait_timeout(state, IDLE);
            let (again, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
            state = again;
            state.idle -= 1;
            if timeout.timed_out() && state.jobs.is_empty() && state.idle > 0 {
                break;
            }
        }
        state.threads -= 1;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    /// As long as one call fewer waits than there are threads, a thread is left for others.
    #[test]
    fn calls_that_wait_leave_room_for_others() {
        let workers = Workers::start().unwrap();
        let gate = Arc::new((Mutex::new(false), Condvar::new()));
        let (sender, ended) = channel();
        for _ in 1..MOST {
            let (gate, sender) = (gate.clone(), sender.clone());
            workers.push(Box::new(move || {
                let (is_open, opened) = &*gate;
                drop(opened.wait_while(is_open.lock().unwrap(), |is_open| !*is_open).unwrap());
                sender.send("waited").unwrap();
            }));
        }
        workers.push(Box::new(move || sender.send("went on").unwrap()));
        assert_eq!(ended.recv().unwrap(), "went on");
        *gate.0.lock().unwrap() = true;
        gate.1.notify_all();
        assert_eq!(ended.iter().count(), MOST - 1);
    }

    #[test]
    fn jobs_that_were_given_are_done_before_the_threads_end() {
        let (sender, ended) = channel();
        let workers = Workers::start().unwrap();
        for number in 0..100 {
            let sender = sender.clone();
            workers.push(Box::new(move || sender.send(number).unwrap()));
        }
        drop((workers, sender));
        assert_eq!(ended.iter().sum::<i32>(), 4950);
    }
}

//! The threads of one store, which make the calls that may block on its file systems and devices.
//!
//! **Problem.** A call on a file may block for ever, because its file system is frozen or its disk
//! hangs. A shard that made such a call would stop with all its connections, and the control thread
//! would stop the whole server. io_uring's own workers do not help: a thread has one set of them
//! for all its files, which hashes writes by inode into 64 classes, and writes of one class wait
//! for each other.
//!
//! **Model.** Each store has its own threads, at most [`MOST`], which make only its calls. One idle
//! thread is kept in reserve, so that [`Workers::push`] starts no thread: a thread that takes a job
//! while no other thread is idle starts the next one. If two threads are idle, one of them ends
//! after [`IDLE`]. Threads are not joined, since they may block for ever.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// The largest number of threads of a store.
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
    /// The largest number of threads.
    most: usize,
    /// The CPUs on which the threads may run: those of the thread that called [`Workers::at_most`].
    cpus: Option<CpuSet>,
}

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    threads: usize,
    /// The number of idle threads.
    idle: usize,
    is_over: bool,
}

impl Workers {
    /// The threads of a store.
    pub(super) fn start() -> std::io::Result<Workers> {
        Workers::at_most(MOST)
    }

    /// A pool of up to `most` threads. One is started at once; fails if the system refuses it. The
    /// threads run on the CPUs of the calling thread.
    pub(super) fn at_most(most: usize) -> std::io::Result<Workers> {
        let cpus = sched_getaffinity(None).ok();
        let pool = Arc::new(Pool { state: Mutex::default(), work: Condvar::new(), most, cpus });
        pool.lock().threads = 1;
        pool.spawn()?;
        Ok(Workers { pool })
    }

    /// Adds a job. Jobs begin in order.
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

    /// Starts a thread, which the caller has already counted.
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
                // If no other thread can be started, this one takes the next job when this job is
                // finished.
                if is_last && let Err(error) = self.spawn() {
                    tracing::warn!(%error, "cannot start a thread for calls that may block");
                }
                job();
                state = self.lock();
                continue;
            }
            // The thread ends only when no job is left: all jobs are carried out first.
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

    /// While fewer calls block than there are threads, other calls are carried out.
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

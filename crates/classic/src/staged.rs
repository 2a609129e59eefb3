//! Staged requests, a queue for each flow, with a scheduler's state of each request.

use alloc::boxed::Box;

use fairq_core::contract::bounds::boxed;
use fairq_core::serial::Job;
use fairq_core::structures::queues::{Fifo, Links};

/// The queues of all flows. A request's state stays until its number is used again.
pub(crate) struct Staged<T> {
    queues: Box<[Fifo]>,
    links: Links,
    jobs: Box<[T]>,
}

impl<T: Copy + Default> Staged<T> {
    /// Empty queues of `flows` flows over the jobs `0..jobs`.
    pub(crate) fn new(flows: usize, jobs: usize) -> Self {
        Staged {
            queues: boxed(flows, |_| Fifo::default()),
            links: Links::new(jobs),
            jobs: boxed(jobs, |_| T::default()),
        }
    }

    /// Appends a request to its flow's queue; ignored if there is no such flow or job.
    #[inline]
    pub(crate) fn push(&mut self, flow: usize, job: Job, kept: T) {
        let Some(queue) = self.queues.get_mut(flow) else { return };
        let Some(place) = self.jobs.get_mut(job.0 as usize) else { return };
        *place = kept;
        self.links.push(queue, job.0);
    }

    /// Takes the flow's first request out.
    #[inline]
    pub(crate) fn pop(&mut self, flow: usize) -> Option<(Job, T)> {
        let job = self.links.pop(self.queues.get_mut(flow)?)?;
        Some((Job(job), *self.jobs.get(job as usize)?))
    }

    /// Takes a request out of its flow's queue, wherever it is.
    #[inline]
    pub(crate) fn remove(&mut self, flow: usize, job: Job) -> Option<T> {
        self.links.remove(self.queues.get_mut(flow)?, job.0);
        self.kept(job)
    }

    /// The flow's first request.
    #[inline]
    pub(crate) fn first_job(&self, flow: usize) -> Option<Job> {
        self.queues.get(flow)?.first().map(Job)
    }

    /// State of the flow's first request.
    #[inline]
    pub(crate) fn first(&self, flow: usize) -> Option<T> {
        self.kept(Job(self.queues.get(flow)?.first()?))
    }

    /// State of a request.
    #[inline]
    pub(crate) fn kept(&self, job: Job) -> Option<T> {
        self.jobs.get(job.0 as usize).copied()
    }

    /// State of a request, to be changed.
    #[inline]
    pub(crate) fn kept_mut(&mut self, job: Job) -> Option<&mut T> {
        self.jobs.get_mut(job.0 as usize)
    }

    /// Whether the flow has nothing staged.
    #[inline]
    pub(crate) fn is_empty(&self, flow: usize) -> bool {
        self.queues.get(flow).is_none_or(Fifo::is_empty)
    }
}

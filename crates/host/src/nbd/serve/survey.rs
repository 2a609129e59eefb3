//! Threads that query file systems for the allocated ranges of files.
//!
//! **Problem.** A block status request reads a file system's map, which takes unbounded time: to
//! find the next hole, the file system searches the file's extents, or in tmpfs its pages, up to
//! the end of the file. A shard that waited for it would delay all its clients, and no policy would
//! charge for this time.
//!
//! **Model.** Each store has one thread, which starts with the first query, so that a store that
//! hangs does not delay other stores. The thread answers the queries of all shards, with a lower
//! CPU priority than theirs. A connection has one query at a time, so connections take turns. The
//! answer reaches the shard through a channel and wakes it.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SendError, Sender, channel};
use std::thread::{Builder, JoinHandle};

use crate::device::{Device, Extent};
use crate::io::wakers::Wakers;
use crate::shard::pool::step_back;
use crate::shard::shared::Common;

/// A block status query of a connection.
#[derive(Debug)]
pub(super) struct Question {
    /// The shard's number of the connection, and the index of the op.
    pub(super) conn: u32,
    pub(super) op: u16,
    /// The range, in bytes.
    pub(super) file: u16,
    pub(super) offset: u64,
    pub(super) length: u64,
    /// The largest number of extents in the answer.
    pub(super) most: usize,
}

/// The answer to a [`Question`].
pub(super) struct Answer {
    pub(super) conn: u32,
    pub(super) op: u16,
    pub(super) extents: io::Result<Vec<Extent>>,
}

/// A query and the channel for its answer.
struct Sent {
    question: Question,
    shard: usize,
    answers: Sender<Answer>,
}

/// The thread that distributes queries. It ends when this and all clients have been dropped.
pub struct Surveyor {
    questions: Sender<Sent>,
    thread: JoinHandle<()>,
}

impl Surveyor {
    /// Starts the thread; fails if the system cannot start one.
    pub fn start<D: Device>(common: &Common<D>) -> io::Result<Surveyor> {
        let (questions, asked) = channel();
        let (device, wakers) = (common.device.clone(), common.wakers.clone());
        let thread = Builder::new()
            .name("fairq-survey".into())
            .spawn(move || distribute(&device, &wakers, asked))?;
        Ok(Surveyor { questions, thread })
    }

    /// The client for the shard with this index.
    pub fn client(&self, shard: usize) -> SurveyClient {
        let (back, answers) = channel();
        SurveyClient { questions: self.questions.clone(), shard, back, answers, open: 0 }
    }

    /// Waits until the thread has ended, which it does when all clients have been dropped.
    pub fn end(self) {
        drop(self.questions);
        self.thread.join().expect("it only queries the device");
    }
}

/// Passes each query to the thread of its file's store.
fn distribute<D: Device>(device: &Arc<D>, wakers: &Arc<Wakers>, asked: Receiver<Sent>) {
    let mut threads: BTreeMap<u16, Sender<Sent>> = BTreeMap::new();
    for asked in asked {
        let store = device.store_of(asked.question.file);
        let thread = threads.entry(store).or_insert_with(|| {
            let (sender, questions) = channel();
            let (device, wakers) = (device.clone(), wakers.clone());
            // The thread is not joined, since its store may hang. If it cannot be started, its
            // queries fail.
            let started = Builder::new()
                .name("fairq-survey".into())
                .spawn(move || survey(&*device, &wakers, &questions));
            if let Err(error) = started {
                tracing::error!(%error, "cannot start the thread that queries a store's file systems \
                                for their maps");
            }
            sender
        });
        if let Err(SendError(asked)) = thread.send(asked) {
            // The thread did not start. Its entry is removed, so that the next query tries again.
            asked.answer(Err(io::ErrorKind::OutOfMemory.into()), wakers);
            threads.remove(&store);
        }
    }
}

fn survey<D: Device>(device: &D, wakers: &Arc<Wakers>, asked: &Receiver<Sent>) {
    if let Err(error) = step_back() {
        tracing::debug!(%error, "cannot lower the CPU priority of the thread that queries file \
         systems");
    }
    for asked in asked {
        let &Question { file, offset, length, most, .. } = &asked.question;
        let extents = device.extents(file, offset, length, most);
        asked.answer(extents, wakers);
    }
}

impl Sent {
    fn answer(self, extents: io::Result<Vec<Extent>>, wakers: &Wakers) {
        let Sent { question: Question { conn, op, .. }, shard, answers } = self;
        // A shard that has ended does not receive the answer.
        let _ = answers.send(Answer { conn, op, extents });
        wakers.wake(shard);
    }
}

/// A shard's client of the surveyor.
pub struct SurveyClient {
    questions: Sender<Sent>,
    shard: usize,
    back: Sender<Answer>,
    answers: Receiver<Answer>,
    /// The number of queries that have not been answered.
    open: usize,
}

impl SurveyClient {
    /// Sends a query.
    pub(super) fn ask(&mut self, question: Question) {
        let asked = Sent { question, shard: self.shard, answers: self.back.clone() };
        self.questions.send(asked).expect("it listens as long as there is a client");
        self.open += 1;
    }

    /// The next answer, if one has arrived.
    pub(super) fn answer(&mut self) -> Option<Answer> {
        // This runs in each turn of a shard, so the channel is read only while a query is
        // unanswered.
        if self.open == 0 {
            return None;
        }
        let answer = self.answers.try_recv().ok()?;
        self.open -= 1;
        Some(answer)
    }
}

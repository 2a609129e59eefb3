//! Connections of unknown peers: bounds their number, and chooses the one that is closed when
//! another one arrives.
//!
//! Problem: many peers that connect and send nothing must not delay an honest client, whatever
//! their number, and must not use more memory and descriptors than a bound. Model: every connection
//! is accepted at once and takes a [`Seat`]. When all seats are taken, the source (a process of
//! this machine, or an address) with the most seats loses the seat of its connection that has been
//! silent for longest. So one source cannot exclude the others. Against a crowd from many sources,
//! an honest client answers within a round trip, so it keeps its seat as long as fewer than `most`
//! connections arrive in that time.
//!
//! A connection that transfers bytes is not silent ([`Watched`]). So a crowd that sends single
//! bytes keeps its seats for as long as a handshake may take, and an honest client keeps its own as
//! long as its round trip is shorter than the pauses between the crowd's bytes.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::oneshot;

use crate::server::listeners::Source;

/// The bounded number of connections of one kind.
pub(super) struct Crowd {
    most: usize,
    seats: Mutex<Seats>,
}

#[derive(Default)]
struct Seats {
    /// The connections that have a seat, by the time of their last bytes: the first has been silent
    /// for longest.
    taken: BTreeMap<u64, Taken>,
    /// The seats of each source.
    of_source: HashMap<Source, usize>,
    /// The clock of the keys: the number of transfers so far.
    moves: u64,
}

/// A connection that has a seat.
struct Taken {
    source: Source,
    leave: oneshot::Sender<()>,
}

/// A connection's seat; free again when it is dropped.
pub(super) struct Seat {
    crowd: Arc<Crowd>,
    /// Its key in [`Seats::taken`].
    moved: AtomicU64,
}

impl Crowd {
    /// A crowd of at most `most` connections.
    pub(super) fn new(most: usize) -> Arc<Crowd> {
        Arc::new(Crowd { most, seats: Mutex::default() })
    }

    /// Takes a seat for a connection from this source; if no seat is free, another connection loses
    /// its seat. The receiver gets a message when this connection has to end.
    pub(super) fn enter(self: &Arc<Crowd>, source: Source) -> (Seat, oneshot::Receiver<()>) {
        let (leave, must_leave) = oneshot::channel();
        let mut seats = self.lock();
        while seats.taken.len() >= self.most {
            seats.send_away();
        }
        let moved = seats.next();
        seats.take(moved, Taken { source, leave });
        (Seat { crowd: self.clone(), moved: AtomicU64::new(moved) }, must_leave)
    }

    /// Whether no seat is taken.
    pub(super) fn is_empty(&self) -> bool {
        self.lock().taken.is_empty()
    }

    /// Ends the connection that has been silent for longest; false if there is none.
    pub(super) fn send_one_away(&self) -> bool {
        self.lock().send_away()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Seats> {
        self.seats.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Seats {
    fn next(&mut self) -> u64 {
        self.moves += 1;
        self.moves
    }

    fn take(&mut self, moved: u64, taken: Taken) {
        *self.of_source.entry(taken.source).or_default() += 1;
        self.taken.insert(moved, taken);
    }

    fn free(&mut self, moved: u64) -> Option<Taken> {
        let taken = self.taken.remove(&moved)?;
        let seats = self.of_source.get_mut(&taken.source).expect("it has this seat");
        *seats -= 1;
        if *seats == 0 {
            self.of_source.remove(&taken.source);
        }
        Some(taken)
    }

    fn send_away(&mut self) -> bool {
        let Some(most) = self.of_source.values().copied().max() else { return false };
        let is_of_most = |(_, taken): &(_, &Taken)| self.of_source[&taken.source] == most;
        let moved = self.taken.iter().find(is_of_most).map(|(moved, _)| *moved);
        // A connection that has ended in the meantime does not need the message.
        moved.and_then(|moved| self.free(moved)).map(|taken| taken.leave.send(())).is_some()
    }
}

impl Seat {
    /// Records that bytes were transferred. Of all seats, this one is now the last to be revoked.
    fn touch(&self) {
        let mut seats = self.crowd.lock();
        // Only this seat's own connection changes its key, under the lock.
        if let Some(taken) = seats.free(self.moved.load(Ordering::Relaxed)) {
            let moved = seats.next();
            self.moved.store(moved, Ordering::Relaxed);
            seats.take(moved, taken);
        }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.crowd.lock().free(self.moved.load(Ordering::Relaxed));
    }
}

/// A stream that keeps its seat while it transfers bytes.
pub(super) struct Watched<S> {
    stream: S,
    /// `None` for a connection that is never closed in favour of another one.
    seat: Option<Seat>,
}

impl<S> Watched<S> {
    pub(super) fn new(stream: S, seat: Option<Seat>) -> Watched<S> {
        Watched { stream, seat }
    }

    /// Gives up the seat.
    pub(super) fn into_inner(self) -> S {
        self.stream
    }

    fn note(&self, moved: bool) {
        if let Some(seat) = self.seat.as_ref().filter(|_| moved) {
            seat.touch();
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Watched<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let result = Pin::new(&mut self.stream).poll_read(cx, buf);
        self.note(buf.filled().len() > before);
        result
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Watched<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.note(matches!(result, Poll::Ready(Ok(count)) if count > 0));
        result
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_one_that_was_silent_for_longest_goes() {
        let crowd = Crowd::new(3);
        let enter = |process| crowd.enter(Source::Process(process));
        let mut seats: Vec<_> = (0..3).map(enter).collect();
        seats[0].0.touch();
        let (fourth, mut fourth_leaves) = enter(3);
        let gone: Vec<bool> = seats.iter_mut().map(|(_, leave)| leave.try_recv().is_ok()).collect();
        assert_eq!(gone, [false, true, false]);
        // A connection that has lost its seat has no seat to return, and gets no new one by
        // transferring bytes.
        seats[1].0.touch();
        drop(seats.remove(1));
        assert_eq!(crowd.lock().taken.len(), 3);
        drop(fourth);
        assert!(fourth_leaves.try_recv().is_err(), "it went by itself");
        let _fifth = enter(4);
        assert!(seats.iter_mut().all(|(_, leave)| leave.try_recv().is_err()), "there was a seat");
        assert!(crowd.send_one_away() && seats[1].1.try_recv().is_ok());
        drop(seats);
        assert!(crowd.send_one_away() && !crowd.send_one_away());
    }

    #[test]
    fn the_source_with_the_most_seats_loses_one() {
        let crowd = Crowd::new(4);
        let (_seat, mut honest) = crowd.enter(Source::Process(1));
        let mut seats: Vec<_> = (0..9).map(|_| crowd.enter(Source::Process(2))).collect();
        assert!(honest.try_recv().is_err(), "it was silent for longest, and has one seat");
        let gone = seats.iter_mut().filter_map(|(_, leave)| leave.try_recv().ok()).count();
        assert_eq!(gone, 6);
        drop(seats);
        assert_eq!(crowd.lock().of_source.len(), 1);
    }
}

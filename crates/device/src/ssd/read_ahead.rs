//! Reading ahead: pages that a drive fetches before they are requested.
//!
//! **Problem.** With one small read at a time each read waits for a die, although the drive could
//! predict the next one. Drives that read ahead serve such reads from their buffer: the P4500's
//! data sheet has 10 us for sequential reads and 85 us for random ones; Memblaze measured 5.96 us
//! with reading ahead and 56.95 us without on a PBlaze7 7940 (4 KiB, depth 1).
//!
//! **Model.** A read that begins where another ended continues its *row*. The third read of a row
//! makes it a *stream*. Of each stream the drive keeps the next pages, up to `kib`, in a reserved
//! part of its buffer: `streams` times `kib`, which writes cannot use. A page passes its die and
//! its channel like others, as a whole. A read that finds a page there takes its part over the link
//! at once; a read that finds it under way waits for it. A page leaves the buffer when its last
//! byte has been read, when its stream has passed it, and when it is overwritten or discarded. A
//! new stream replaces the one that has not been read for longest.
//!
//! **Reads of the host go first.** A page is read ahead only when its die is idle, and the pages
//! behind it wait for that page. So a read waits for at most one page that was read ahead at its
//! die, and a drive whose dies are all busy, which would gain nothing from reading ahead, does not
//! read ahead. The drive tries again when the stream is read and when a page arrives.
//!
//! **Random reads** make no row, so they take the same time with reading ahead and without.
//!
//! **Bounds.** All memory is allocated at the start, except for the list of commands that wait for
//! pages, at most as many as pages under way. A read checks each stream and each of [`ROWS`] rows,
//! a write each stream.

use crate::profile::Profile;

/// The number of rows that are followed and are not streams yet.
const ROWS: usize = 16;
/// The number of reads that continue a row until it becomes a stream.
const CONTINUED: u32 = 2;
/// An address at which no read ends.
const NOWHERE: u64 = u64::MAX;

/// A place for one page in the buffer, and its state.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Place {
    Empty,
    /// This page is under way.
    OnItsWay(u64),
    /// The page under way is of no use to later reads.
    Outdated,
    /// This page is in the buffer.
    Here(u64),
}

#[derive(Clone, Copy)]
struct Stream {
    /// Start of its next read, in bytes.
    next: u64,
    /// One past the last page that was read ahead. The stream's places hold no page before `end -
    /// room`.
    end: u64,
    /// Number of the read that read it last.
    used: u64,
}

#[derive(Clone, Copy)]
struct Row {
    end: u64,
    continued: u32,
}

/// A command that waits for a page under way.
struct Waiting {
    place: u32,
    command: u32,
    bytes: u64,
}

/// The state of a page that a command needs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Found {
    /// The page has to be read.
    No,
    /// The command gets the page when it arrives.
    OnItsWay,
    /// The page can leave over the link.
    Here,
}

pub(super) struct ReadAhead {
    page_shift: u32,
    /// Number of pages of the device.
    pages: u64,
    /// Number of places of each stream.
    room: u64,
    streams: Box<[Stream]>,
    places: Box<[Place]>,
    rows: [Row; ROWS],
    oldest: usize,
    reads: u64,
    waiting: Vec<Waiting>,
}

impl ReadAhead {
    /// `None` if the profile has no section for reading ahead.
    pub(super) fn new(profile: &Profile, capacity: u64) -> Option<Self> {
        let section = profile.read_ahead.as_ref()?;
        let page_kib = profile.media.page_kib.get();
        let page_shift = (page_kib * 1024).trailing_zeros();
        let room = section.kib.get() / page_kib;
        let streams = section.streams.get();
        let unused = Stream { next: NOWHERE, end: 0, used: 0 };
        Some(ReadAhead {
            page_shift,
            pages: capacity >> page_shift,
            room: room.into(),
            streams: vec![unused; streams as usize].into(),
            places: vec![Place::Empty; (streams * room) as usize].into(),
            rows: [Row { end: NOWHERE, continued: 0 }; ROWS],
            oldest: 0,
            reads: 0,
            waiting: Vec::new(),
        })
    }

    /// The most pages that may be under way.
    pub(super) fn places(&self) -> usize {
        self.places.len()
    }

    /// The stream of this place.
    pub(super) fn stream_of(&self, place: u32) -> usize {
        (u64::from(place) / self.room) as usize
    }

    fn place(&self, stream: usize, page: u64) -> usize {
        stream * self.room as usize + (page % self.room) as usize
    }

    /// A command takes `bytes` bytes of a page, which end at `end`.
    pub(super) fn take(&mut self, page: u64, end: u64, bytes: u64, command: u32) -> Found {
        let wanted = [Place::Here(page), Place::OnItsWay(page)];
        let mut places = (0..self.streams.len()).map(|stream| self.place(stream, page));
        let Some(place) = places.find(|&place| wanted.contains(&self.places[place])) else {
            return Found::No;
        };
        let is_read_out = end == (page + 1) << self.page_shift;
        match self.places[place] {
            Place::Here(_) => {
                if is_read_out {
                    self.places[place] = Place::Empty;
                }
                Found::Here
            }
            _ => {
                if is_read_out {
                    self.places[place] = Place::Outdated;
                }
                self.waiting.push(Waiting { place: place as u32, command, bytes });
                Found::OnItsWay
            }
        }
    }

    /// Records a read, after it has taken its pages; returns its stream.
    pub(super) fn note(&mut self, offset: u64, end: u64) -> Option<usize> {
        self.reads += 1;
        let (page, shift) = (offset >> self.page_shift, self.page_shift);
        // Commands of a stream may overtake each other, within the pages that were read ahead.
        let is_of = |stream: &Stream| {
            stream.next == offset || (stream.next >> shift..stream.end).contains(&page)
        };
        let stream = match self.streams.iter().position(is_of) {
            Some(stream) => stream,
            None => self.begun(offset, end)?,
        };
        let it = &mut self.streams[stream];
        (it.next, it.used) = (it.next.max(end), self.reads);
        let first = it.next >> shift;
        if first > it.end {
            // Reads have passed all its pages.
            it.end = first;
            self.forget(stream);
        }
        Some(stream)
    }

    /// Records a read of no stream; returns the stream that begins with it, if any.
    fn begun(&mut self, offset: u64, end: u64) -> Option<usize> {
        let Some(row) = self.rows.iter_mut().find(|row| row.end == offset) else {
            self.rows[self.oldest] = Row { end, continued: 0 };
            self.oldest = (self.oldest + 1) % ROWS;
            return None;
        };
        (row.end, row.continued) = (end, row.continued + 1);
        if row.continued < CONTINUED {
            return None;
        }
        *row = Row { end: NOWHERE, continued: 0 };
        let longest_unread = (0..self.streams.len()).min_by_key(|&at| self.streams[at].used)?;
        self.forget(longest_unread);
        let first = end >> self.page_shift;
        self.streams[longest_unread] = Stream { next: end, end: first, used: self.reads };
        Some(longest_unread)
    }

    /// The stream's next page to read ahead, if it has room.
    pub(super) fn wanted(&self, stream: usize) -> Option<u64> {
        let Stream { next, end, .. } = self.streams[stream];
        if next == NOWHERE {
            return None;
        }
        let most = ((next >> self.page_shift) + self.room).min(self.pages);
        let is_free = matches!(self.places[self.place(stream, end)], Place::Empty | Place::Here(_));
        (end < most && is_free).then_some(end)
    }

    /// Marks the stream's next page as under way; returns its place.
    pub(super) fn send(&mut self, stream: usize) -> u32 {
        let page = self.streams[stream].end;
        let place = self.place(stream, page);
        // Reads have passed the page that is still there.
        self.places[place] = Place::OnItsWay(page);
        self.streams[stream].end += 1;
        place as u32
    }

    /// The page of a place has arrived.
    pub(super) fn arrived(&mut self, place: u32) {
        let place = &mut self.places[place as usize];
        *place = match *place {
            Place::OnItsWay(page) => Place::Here(page),
            _ => Place::Empty,
        };
    }

    /// The next command that has waited for the page that arrived, and its bytes of the page; in
    /// the order of waiting.
    pub(super) fn next_waiting(&mut self, place: u32) -> Option<(u32, u64)> {
        let at = self.waiting.iter().position(|waiting| waiting.place == place)?;
        let Waiting { command, bytes, .. } = self.waiting.remove(at);
        Some((command, bytes))
    }

    /// This range is overwritten or discarded.
    pub(super) fn drop_range(&mut self, offset: u64, end: u64) {
        if offset >= end {
            return;
        }
        let (first, last) = (offset >> self.page_shift, (end - 1) >> self.page_shift);
        for stream in 0..self.streams.len() {
            let Stream { end, .. } = self.streams[stream];
            for page in first.max(end.saturating_sub(self.room))..end.min(last + 1) {
                let place = self.place(stream, page);
                self.empty(place);
            }
        }
    }

    /// Drops the stream's pages.
    fn forget(&mut self, stream: usize) {
        let first = stream * self.room as usize;
        (first..first + self.room as usize).for_each(|place| self.empty(place));
    }

    fn empty(&mut self, place: usize) {
        let place = &mut self.places[place];
        *place = match *place {
            Place::Empty | Place::Here(_) => Place::Empty,
            Place::OnItsWay(_) | Place::Outdated => Place::Outdated,
        };
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::profile::Count;
    use proptest::prelude::*;

    const PAGE: u64 = 16 << 10;

    #[derive(Clone, Copy, Debug)]
    enum Step {
        /// A read of some bytes: from this offset, or from the end of the last read.
        Read(Option<u64>, u64),
        Write(u64, u64),
        /// The page of one of the waiting places arrives.
        Arrives(usize),
    }

    fn any_step() -> impl Strategy<Value = Step> {
        let offset = 0..40 * PAGE;
        prop_oneof![
            6 => (prop::option::weighted(0.2, offset.clone()), 1..3 * PAGE)
                .prop_map(|(offset, length)| Step::Read(offset, length)),
            1 => (offset, 0..4 * PAGE).prop_map(|(offset, length)| Step::Write(offset, length)),
            6 => any::<usize>().prop_map(Step::Arrives),
        ]
    }

    proptest! {
        #[test]
        fn nothing_is_kept_that_was_written_over(
            steps in prop::collection::vec(any_step(), 1..300),
        ) {
            nothing_old_is_kept(steps);
        }
    }

    /// Data that are in the buffer, or under way for later reads, were requested after the last
    /// write to them; each place waits for one page at a time; and each waiting command gets its
    /// bytes.
    fn nothing_old_is_kept(steps: Vec<Step>) {
        let section = crate::profile::ReadAhead { kib: Count::new(64), streams: Count::new(3) };
        let mut profile = Profile::named("p4500").expect("it is built in");
        profile.read_ahead = Some(section);
        let mut ahead = ReadAhead::new(&profile, 1 << 30).expect("it has the section");
        let mut versions = vec![0u32; 1000];
        // For each place the requested page, its version then, and whether it has not arrived yet.
        let mut sent = vec![(0u64, 0u32, false); ahead.places()];
        let (mut end, mut wait_for, mut got) = (0, 0, 0);
        for (number, step) in (0..).zip(steps) {
            let stream = match step {
                Step::Read(offset, length) => {
                    let offset = offset.unwrap_or(end) % (60 * PAGE);
                    end = offset + length;
                    for page in offset / PAGE..=(end - 1) / PAGE {
                        let bytes = end.min((page + 1) * PAGE) - offset.max(page * PAGE);
                        let found = ahead.take(page, end.min((page + 1) * PAGE), bytes, number);
                        wait_for += if found == Found::OnItsWay { bytes } else { 0 };
                    }
                    ahead.note(offset, end)
                }
                Step::Write(offset, length) => {
                    ahead.drop_range(offset, offset + length);
                    let pages = offset / PAGE..(offset + length).div_ceil(PAGE);
                    pages.filter(|_| length > 0).for_each(|page| versions[page as usize] += 1);
                    None
                }
                Step::Arrives(which) => {
                    let waits: Vec<usize> = (0..sent.len()).filter(|&at| sent[at].2).collect();
                    let Some(&place) = waits.get(which % waits.len().max(1)) else { continue };
                    sent[place].2 = false;
                    ahead.arrived(place as u32);
                    while let Some((_, bytes)) = ahead.next_waiting(place as u32) {
                        got += bytes;
                    }
                    Some(ahead.stream_of(place as u32))
                }
            };
            while let Some(stream) = stream
                && let Some(page) = ahead.wanted(stream)
            {
                let place = ahead.send(stream) as usize;
                assert!(!std::mem::replace(&mut sent[place].2, true));
                (sent[place].0, sent[place].1) = (page, versions[page as usize]);
            }
            for (place, &(page, version, is_on_its_way)) in ahead.places.iter().zip(&sent) {
                match *place {
                    Place::Empty => assert!(!is_on_its_way),
                    Place::Outdated => assert!(is_on_its_way),
                    Place::Here(it) | Place::OnItsWay(it) => {
                        assert_eq!(is_on_its_way, *place == Place::OnItsWay(it));
                        assert_eq!((it, version), (page, versions[it as usize]));
                    }
                }
            }
        }
        for place in (0..sent.len()).filter(|&at| sent[at].2) {
            ahead.arrived(place as u32);
            while let Some((_, bytes)) = ahead.next_waiting(place as u32) {
                got += bytes;
            }
        }
        assert_eq!((got, ahead.waiting.len()), (wait_for, 0));
    }
}

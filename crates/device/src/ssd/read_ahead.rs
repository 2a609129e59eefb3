//! Reading ahead: pages that a drive fetches before they are asked for.
//!
//! **Problem.** One small read at a time waits for a die each time, though the drive could know
//! what comes next. Drives that read ahead answer such reads from their buffer: the P4500's data
//! sheet has 10 us for sequential reads and 85 us for random ones; Memblaze measured 5.96 us with
//! reading ahead and 56.95 us without on a PBlaze7 7940 (4 KiB, depth 1).
//!
//! **Model.** A read that begins where another ended continues its *row*. The third read of a row
//! makes it a *stream*. Of each stream the drive keeps the next pages, as many as `kib` has, in a
//! part of its buffer that is set aside: `streams` times `kib`, which writes do not have. A page
//! goes through its die and its channel as others do, whole. A read that finds it takes its part
//! over the link at once; one that finds it on its way waits for it. A page leaves the buffer when
//! its last byte has been read, when its stream has gone past it, and when it is written over or
//! discarded. A new stream takes the place of the one that has not been read for longest.
//!
//! **Reads of the host go first.** A page is read ahead only when its die has nothing to do, and
//! the pages behind it wait until it is. So a read waits for at most one page that was read ahead
//! at its die, and a drive whose dies are all busy, which gains nothing from reading ahead, does
//! not. The drive looks again when the stream is read and when a page arrives.
//!
//! **Random reads** make no row, so they take the same time with reading ahead and without.
//!
//! **Bounds.** All memory is there from the start, except that of commands that wait for pages,
//! which are as many as pages on their way. A read costs a look at each stream and at each of
//! [`ROWS`] rows, a write one at each stream.

use crate::profile::Profile;

/// The number of sequences that are followed and are no streams yet.
const ROWS: usize = 16;
/// The number of reads after which a sequence becomes a stream.
const CONTINUED: u32 = 2;
/// The end of no read.
const NOWHERE: u64 = u64::MAX;

/// Room for one page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Place {
    Empty,
    /// This page is being read.
    OnItsWay(u64),
    /// The data that are being read are of no use to later reads.
    Outdated,
    /// This page is here.
    Here(u64),
}

#[derive(Clone, Copy)]
struct Stream {
    /// Where its next read begins.
    next: u64,
    /// One past the last page that was read ahead. No place has an older page than the one that is
    /// a stream's room before this.
    end: u64,
    /// When it was last read, in reads.
    used: u64,
}

#[derive(Clone, Copy)]
struct Row {
    end: u64,
    continued: u32,
}

/// A command that waits for a page on its way.
struct Waiting {
    place: u32,
    command: u32,
    bytes: u64,
}

/// Where a page is that a command wants.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Found {
    /// It has to be read.
    No,
    /// The command gets it when it arrives.
    OnItsWay,
    /// It can leave over the link.
    Here,
}

pub(super) struct ReadAhead {
    page_shift: u32,
    /// Pages of the device.
    pages: u64,
    /// Places of each stream.
    room: u64,
    streams: Box<[Stream]>,
    places: Box<[Place]>,
    rows: [Row; ROWS],
    oldest: usize,
    reads: u64,
    waiting: Vec<Waiting>,
}

impl ReadAhead {
    /// `None` if the profile has none.
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

    /// The stream that has this place.
    pub(super) fn stream_of(&self, place: u32) -> usize {
        (u64::from(place) / self.room) as usize
    }

    fn place(&self, stream: usize, page: u64) -> usize {
        stream * self.room as usize + (page % self.room) as usize
    }

    /// A command takes these bytes, which end at `end`, of a page.
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

    /// Notes a read, after it has taken its pages; gives the stream that it belongs to.
    pub(super) fn note(&mut self, offset: u64, end: u64) -> Option<usize> {
        self.reads += 1;
        let (page, shift) = (offset >> self.page_shift, self.page_shift);
        // Commands of a stream may overtake each other, within what was read ahead.
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
            // Reads have gone past all of it.
            it.end = first;
            self.forget(stream);
        }
        Some(stream)
    }

    /// A read that belongs to no stream: gives the stream that begins with it, if one does.
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

    /// The page that the stream wants next and has room for.
    pub(super) fn wanted(&self, stream: usize) -> Option<u64> {
        let Stream { next, end, .. } = self.streams[stream];
        if next == NOWHERE {
            return None;
        }
        let most = ((next >> self.page_shift) + self.room).min(self.pages);
        let is_free = matches!(self.places[self.place(stream, end)], Place::Empty | Place::Here(_));
        (end < most && is_free).then_some(end)
    }

    /// The stream's next page is being read; gives its place.
    pub(super) fn send(&mut self, stream: usize) -> u32 {
        let page = self.streams[stream].end;
        let place = self.place(stream, page);
        // A page that is there has been passed by.
        self.places[place] = Place::OnItsWay(page);
        self.streams[stream].end += 1;
        place as u32
    }

    /// The page of a place is there.
    pub(super) fn arrived(&mut self, place: u32) {
        let place = &mut self.places[place as usize];
        *place = match *place {
            Place::OnItsWay(page) => Place::Here(page),
            _ => Place::Empty,
        };
    }

    /// A command that has waited for what arrived, and how many bytes of it; in the order in which
    /// they came.
    pub(super) fn next_waiting(&mut self, place: u32) -> Option<(u32, u64)> {
        let at = self.waiting.iter().position(|waiting| waiting.place == place)?;
        let Waiting { command, bytes, .. } = self.waiting.remove(at);
        Some((command, bytes))
    }

    /// This range is written over or discarded.
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

    /// The stream's pages are of no use any longer.
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
        /// A read of some bytes: from this offset, or from where the last one ended.
        Read(Option<u64>, u64),
        Write(u64, u64),
        /// The page of one of the places that wait for one comes.
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

    /// Data that are there, or under way to later reads, were requested after the last write to it;
    /// each place is asked for one page at a time; and each command that waits gets its bytes.
    fn nothing_old_is_kept(steps: Vec<Step>) {
        let section = crate::profile::ReadAhead { kib: Count::new(64), streams: Count::new(3) };
        let mut profile = Profile::named("p4500").expect("it is built in");
        profile.read_ahead = Some(section);
        let mut ahead = ReadAhead::new(&profile, 1 << 30).expect("it has the section");
        let mut versions = vec![0u32; 1000];
        // Of each place what was sent for, and whether it has not come yet.
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

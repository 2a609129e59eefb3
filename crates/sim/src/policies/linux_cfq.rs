//! CFQ as Linux 3.10 runs it on a drive that does not rotate and has tagged queueing, for the
//! laboratory alone: the scheduler that the NASS paper measured.
//!
//! **Difference from `cfq`.** fairq's own CFQ waits for a reader's next request with a timer, as
//! Linux does on a disk. On such an SSD Linux does not wait, and some other decisions differ. The
//! rules are those of `block/cfq-iosched.c` of 3.10; the text names the functions of that file.
//!
//! **Model.** A queue for each flow, all of one priority, in one group. Time in ticks of a
//! millisecond.
//! - *Trees.* A queue is in the tree of queues for which CFQ may wait (*sync*) while its idle
//!   window is open, else in the other tree (*noidle*). The window is closed while most of the
//!   queue's last requests were below 32 KiB when they arrived, unless the queue has been *deep*,
//!   that is, had four requests staged at once (`cfq_update_idle_window`). CFQ serves the queues of
//!   a tree in the order in which they entered it, and serves a tree for a part of 300 ms that
//!   depends on the number of its queues (`choose_wl_class_and_type`).
//! - *Waiting.* No timer is ever armed (`cfq_arm_slice_timer` returns at once). A queue without
//!   staged requests keeps the drive only while requests of its own are on the drive and it is
//!   alone in its tree (`cfq_should_idle`); otherwise CFQ serves the next queue. In 3.10 direct
//!   writes are synchronous (`WRITE_ODIRECT`), so the rule applies to reads and writes alike.
//! - *Asynchronous writes* come from the page cache; an option makes all writes asynchronous. The
//!   writes of all flows are in one queue, which has a tree of its own (`cfq_async_queue_prio`).
//!   They wait while a synchronous request is on the drive. Otherwise one asynchronous write may be
//!   on the drive for each tenth of a second that has passed since a synchronous request last took
//!   125 ms, and at least one (`cfq_may_dispatch`). Beside other queues a turn is sixteen writes
//!   (`cfq_prio_to_maxrq`), and a synchronous request ends it (`cfq_should_preempt`).
//! - *Slices* of 100 ms begin when a queue's first request completes (`cfq_set_prio_slice`).
//! - *Depth.* A queue has four requests on the drive before its slice begins and near its end, and
//!   eight in between; a queue that is alone, or the only synchronous one, has as many as fit
//!   (`cfq_may_dispatch`).
//! - *Limits of NASS.* If these hold the active queue back, CFQ serves the next queue that may
//!   send, without the test of `cfq_may_dispatch`; so asynchronous writes may be served beside
//!   reads. The paper does not describe how NASS and CFQ combine, and with the test no limit on
//!   reads could help such writes.
//!
//! Without waiting (`slice_idle` = 0, the paper's CFQ-NA) all queues are in one tree, and CFQ waits
//! for no queue.
//!
//! **Left out**: groups, priorities, cooperating queues, the order of sectors within a queue, the
//! longer slice of a lone queue (`cfq_should_wait_busy`), and the earlier place in the tree of the
//! first queue on an idle drive, and the wait of a lone queue for another one (`check_group_idle`).

use std::collections::VecDeque;

use fairq_core::serial::{Arrival, Job, Lane, Lanes, Selection, SerialConfig, SerialPolicy};
use fairq_core::{Op, Outcome, Weight};

/// Times in ms: the slice of a queue, the slice of asynchronous writes, and the time in which each
/// queue of a group has a turn.
const SLICE_MS: i64 = 100;
const ASYNC_SLICE_MS: i64 = 40;
const TARGET_MS: i64 = 300;
/// The delay of a queue's place for each other queue, in ms (`cfq_slice_offset`): the slice of a
/// synchronous queue of the highest priority, 180 ms, less the queue's own slice.
const OFFSET_MS: i64 = 80;
const ASYNC_OFFSET_MS: i64 = 140;
/// Asynchronous writes of a turn beside other queues (`cfq_slice_async_rq` 2, the usual priority).
const ASYNC_TURN: u32 = 16;
/// A synchronous request that took this long was late (`cfq_fifo_expire`).
const LATE_MS: i64 = 125;
/// The shortest service of a tree, in ms.
const LEAST_MS: i64 = 2;
/// A request of fewer bytes counts as a seek (`CFQQ_SECT_THR_NONROT`).
const SEEKS_BELOW: u32 = 32 << 10;
/// A queue is deep from this many staged requests on.
const DEEP: usize = 4;
/// A queue that preempts gets a place this many ms before the first (`HZ`).
const FRONT_MS: i64 = 1000;

/// The tree of a queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Tree {
    Async,
    Noidle,
    #[default]
    Sync,
}

/// The mean time from a completion to the next request (`cfq_ttime`).
#[derive(Clone, Copy, Debug, Default)]
struct ThinkTime {
    last_end_ms: i64,
    samples: i64,
    total: i64,
}

impl ThinkTime {
    fn arrived(&mut self, now_ms: i64, idle_ms: i64) {
        // `__cfq_update_io_thinktime`: an average over some eight samples, in 256ths; a long pause
        // counts as two idle times.
        let elapsed = (now_ms - self.last_end_ms).min(2 * idle_ms);
        self.samples = (7 * self.samples + 256) / 8;
        self.total = (7 * self.total + 256 * elapsed) / 8;
    }

    /// The mean in ms; `None` until there are enough samples.
    fn mean_ms(&self) -> Option<i64> {
        (self.samples > 80).then(|| (self.total + 128) / self.samples)
    }

    fn is_big(&self, idle_ms: i64) -> bool {
        self.mean_ms().is_some_and(|mean| mean > idle_ms)
    }
}

/// Start and end of a queue's slice.
#[derive(Clone, Copy, Debug)]
struct Slice {
    start_ms: i64,
    end_ms: i64,
}

#[derive(Debug, Default)]
struct Queue {
    is_async: bool,
    /// Staged requests with their flows.
    staged: VecDeque<(Job, usize)>,
    on_drive: u32,
    /// Requests dispatched in this turn.
    sent: u32,
    /// Whether the queue is in a tree; then that tree, and the queue's place in it.
    is_busy: bool,
    tree: Tree,
    place: (i64, u64),
    /// `None` until its first request of this turn has completed.
    slice: Option<Slice>,
    /// Rest of its last slice; negative if it used more than the slice.
    residue_ms: i64,
    is_deep: bool,
    idle_window: bool,
    /// A bit for each of its last 32 requests: whether it was small.
    small: u32,
    think: ThinkTime,
}

impl Queue {
    fn is_used_up(&self, now_ms: i64) -> bool {
        self.slice.is_some_and(|slice| now_ms >= slice.end_ms)
    }

    fn is_seeky(&self) -> bool {
        self.small.count_ones() > 32 / 8
    }

    fn tree_of_its_kind(&self) -> Tree {
        match (self.is_async, self.idle_window) {
            (true, _) => Tree::Async,
            (false, true) => Tree::Sync,
            (false, false) => Tree::Noidle,
        }
    }

    /// Its slice, and the delay of its place for each other queue.
    fn slice_and_offset_ms(&self) -> (i64, i64) {
        if self.is_async { (ASYNC_SLICE_MS, ASYNC_OFFSET_MS) } else { (SLICE_MS, OFFSET_MS) }
    }
}

/// The record of a request until it completes.
#[derive(Clone, Copy, Debug, Default)]
struct Sent {
    queue: usize,
    arrived_ms: i64,
}

/// Linux's CFQ.
pub(crate) struct LinuxCfq {
    idle_ms: i64,
    quantum: u32,
    has_async_writes: bool,
    /// One queue for each flow, and the queue of asynchronous writes.
    queues: Vec<Queue>,
    lanes: Vec<Lane>,
    sent: Vec<Sent>,
    /// Time of the last late synchronous request.
    late_ms: i64,
    active: Option<usize>,
    serving: Tree,
    /// End of that tree's service.
    tree_ends_ms: i64,
    think: [ThinkTime; 3],
    /// Moving average of the number of busy queues.
    usually_busy: i64,
    places: u64,
}

impl LinuxCfq {
    /// `waits`: whether CFQ waits (`slice_idle`). Further arguments are the most requests that a
    /// queue beside others may have on the drive, and whether writes are asynchronous.
    pub(crate) fn new(
        bounds: &SerialConfig,
        waits: bool,
        quantum: u32,
        has_async_writes: bool,
    ) -> LinuxCfq {
        let queue = |at| Queue {
            is_async: at == bounds.flows,
            staged: VecDeque::with_capacity(bounds.jobs()),
            idle_window: true,
            ..Queue::default()
        };
        LinuxCfq {
            idle_ms: if waits { 8 } else { 0 },
            quantum,
            has_async_writes,
            queues: (0..=bounds.flows).map(queue).collect(),
            lanes: vec![Lane::default(); bounds.flows],
            sent: vec![Sent::default(); bounds.jobs()],
            late_ms: -FRONT_MS,
            active: None,
            serving: Tree::default(),
            tree_ends_ms: 0,
            think: [ThinkTime::default(); 3],
            usually_busy: 0,
            places: 0,
        }
    }

    fn busy(&self) -> impl Iterator<Item = (usize, &Queue)> {
        self.queues.iter().enumerate().filter(|(_, queue)| queue.is_busy)
    }

    fn in_tree(&self, tree: Tree) -> usize {
        self.busy().filter(|(_, queue)| queue.tree == tree).count()
    }

    fn first(&self, tree: Tree) -> Option<usize> {
        let of_tree = self.busy().filter(|(_, queue)| queue.tree == tree);
        of_tree.min_by_key(|(_, queue)| queue.place).map(|(at, _)| at)
    }

    /// `cfq_service_tree_add`.
    fn enter(&mut self, at: usize, now_ms: i64, front: bool) {
        let others = self.busy().count() as i64 - 1;
        let tree = self.queues[at].tree_of_its_kind();
        let first_ms = self.first(tree).map_or(now_ms, |first| self.queues[first].place.0);
        self.places += 1;
        let queue = &mut self.queues[at];
        let (_, offset_ms) = queue.slice_and_offset_ms();
        let place_ms = match front {
            true => first_ms - FRONT_MS,
            false => now_ms + offset_ms * others.max(0) - std::mem::take(&mut queue.residue_ms),
        };
        (queue.is_busy, queue.tree, queue.place) = (true, tree, (place_ms, self.places));
    }

    /// `cfq_scaled_cfqq_slice`.
    fn slice_ms(&mut self, at: usize) -> i64 {
        let (slice_ms, _) = self.queues[at].slice_and_offset_ms();
        let busy = self.busy().count() as i64;
        // `cfq_get_avg_queues`: it rises quickly and falls slowly.
        let (most, least) = (self.usually_busy.max(busy), self.usually_busy.min(busy));
        self.usually_busy = (3 * most + least + 2) / 4;
        let expected = SLICE_MS * self.usually_busy;
        match expected > TARGET_MS {
            true => {
                let least_ms = slice_ms.min(2 * self.idle_ms * slice_ms / SLICE_MS);
                (slice_ms * TARGET_MS / expected).max(least_ms)
            }
            false => slice_ms,
        }
    }

    /// `__cfq_slice_expired`.
    fn expire(&mut self, at: usize, now_ms: i64, timed_out: bool) {
        if timed_out {
            let left_ms = match self.queues[at].slice {
                Some(slice) => slice.end_ms - now_ms,
                None => self.slice_ms(at),
            };
            self.queues[at].residue_ms = left_ms;
        }
        if self.queues[at].staged.is_empty() {
            self.queues[at].is_busy = false;
        }
        if self.queues[at].is_busy {
            self.enter(at, now_ms, false);
        }
        self.queues[at].slice = None;
        if self.active == Some(at) {
            self.active = None;
        }
    }

    /// `cfq_should_idle`, on such a drive.
    fn is_waited_for(&self, at: usize) -> bool {
        let Queue { tree, is_async, .. } = self.queues[at];
        self.idle_ms > 0
            && !is_async
            && self.in_tree(tree) == 1
            && !self.think[tree as usize].is_big(self.idle_ms)
    }

    /// `cfq_update_io_thinktime`, `cfq_update_io_seektime` and `cfq_update_idle_window`.
    fn update_idle_window(&mut self, at: usize, now_ms: i64, length: u32) {
        let idle_ms = self.idle_ms;
        self.think[self.queues[at].tree as usize].arrived(now_ms, idle_ms);
        let queue = &mut self.queues[at];
        queue.think.arrived(now_ms, idle_ms);
        queue.small = queue.small << 1 | u32::from(length < SEEKS_BELOW);
        queue.is_deep |= queue.staged.len() >= DEEP;
        if idle_ms == 0 || (!queue.is_deep && queue.is_seeky()) {
            queue.idle_window = false;
        } else if let Some(mean) = queue.think.mean_ms() {
            queue.idle_window = mean <= idle_ms;
        }
    }

    /// `choose_wl_class_and_type`.
    fn choose_tree(&mut self, now_ms: i64) {
        if self.in_tree(self.serving) > 0 && now_ms <= self.tree_ends_ms {
            return;
        }
        let firsts = [Tree::Async, Tree::Noidle, Tree::Sync]
            .map(|tree| (tree, self.first(tree).map(|first| self.queues[first].place.0)));
        let waiting = firsts.into_iter().filter_map(|(tree, place)| Some((place?, tree)));
        self.serving =
            waiting.min_by_key(|&(place, _)| place).map_or(Tree::Noidle, |(_, tree)| tree);
        let busy = (self.busy().count() as i64).max(self.usually_busy).max(1);
        let part_ms = TARGET_MS * self.in_tree(self.serving) as i64 / busy;
        let length_ms = match self.serving {
            Tree::Async => part_ms * ASYNC_SLICE_MS / SLICE_MS,
            Tree::Noidle | Tree::Sync => part_ms.max(2 * self.idle_ms),
        };
        self.tree_ends_ms = now_ms + length_ms.max(LEAST_MS);
    }

    /// The queue of asynchronous writes.
    fn writes(&self) -> usize {
        self.lanes.len()
    }

    /// Number of synchronous requests on the drive.
    fn sync_on_drive(&self) -> u32 {
        self.queues.iter().filter(|queue| !queue.is_async).map(|queue| queue.on_drive).sum()
    }

    /// `cfq_may_dispatch`.
    fn may_dispatch(&self, at: usize, now_ms: i64) -> bool {
        let queue = &self.queues[at];
        let is_held_by_the_other_kind = match queue.is_async {
            true => self.sync_on_drive() > 0,
            false => self.queues[self.writes()].on_drive > 0 && self.is_waited_for(at),
        };
        if is_held_by_the_other_kind {
            return false;
        }
        let mut most = (self.quantum / 2).max(1);
        if queue.on_drive >= most {
            let has_no_other = match queue.is_async {
                true => self.busy().count() == 1,
                false => self.busy().filter(|(_, queue)| !queue.is_async).count() == 1,
            };
            let on_drive = i64::from(queue.on_drive);
            let ends_soon =
                queue.slice.is_none_or(|slice| now_ms + self.idle_ms * on_drive > slice.end_ms);
            most = match (has_no_other, ends_soon) {
                (true, _) => u32::MAX,
                (false, true) => return false,
                (false, false) => self.quantum,
            };
        }
        if queue.is_async {
            let tenths = ((now_ms - self.late_ms) / SLICE_MS) as u32;
            most = most.min(if queue.on_drive == 0 { tenths.max(1) } else { tenths });
        }
        queue.on_drive < most
    }

    /// Index of the first of its staged requests that may be dispatched.
    fn admitted(&self, at: usize, lanes: Lanes) -> Option<usize> {
        self.queues[at].staged.iter().position(|&(_, flow)| match lanes {
            Lanes::All => self.lanes[flow] != Lane::Shut,
            Lanes::Reserved => self.lanes[flow] == Lane::Reserved,
        })
    }

    fn serve(&mut self, at: usize, staged: usize, now_ms: i64) -> Selection {
        let queue = &mut self.queues[at];
        let Some((job, flow)) = queue.staged.remove(staged) else { return Selection::Nothing };
        queue.on_drive += 1;
        queue.sent += 1;
        if queue.is_async
            && queue.sent >= ASYNC_TURN
            && self.active == Some(at)
            && self.busy().count() > 1
        {
            self.expire(at, now_ms, false);
        }
        Selection::Serve(job, flow)
    }

    /// `cfq_should_preempt` for a request of a queue that is not active.
    fn preempts(&self, at: usize, active: usize, now_ms: i64) -> bool {
        let (new, old) = (&self.queues[at], &self.queues[active]);
        let both_noidle = self.serving == Tree::Noidle
            && new.tree_of_its_kind() == Tree::Noidle
            && self.in_tree(new.tree) == 2;
        (old.is_async && !new.is_async)
            || old.is_used_up(now_ms)
            || (old.staged.is_empty() && (both_noidle || !self.is_waited_for(active)))
    }

    /// `cfq_select_queue`: the queue that has the turn, if any.
    fn turn(&mut self, now_ms: i64) -> Option<usize> {
        if let Some(at) = self.active {
            let queue = &self.queues[at];
            let is_alone = self.busy().count() == 1;
            if queue.is_used_up(now_ms) {
                // `check_group_idle`: a queue that is alone in its group keeps its turn while its
                // own requests are on the drive.
                if is_alone && queue.on_drive > 0 {
                    return None;
                }
            } else if !queue.staged.is_empty() {
                return Some(at);
            } else {
                let is_early = queue
                    .slice
                    .is_none_or(|Slice { start_ms, end_ms }| end_ms - now_ms > now_ms - start_ms);
                if queue.is_seeky() && queue.idle_window && is_early {
                    // The drive completes requests faster than the queue gets new ones, so the
                    // queue is not deep.
                    (self.queues[at].is_deep, self.queues[at].idle_window) = (false, false);
                }
                if self.queues[at].on_drive > 0 && (is_alone || self.is_waited_for(at)) {
                    return None;
                }
            }
            self.expire(at, now_ms, false);
        }
        self.choose_tree(now_ms);
        self.active = self.first(self.serving);
        if let Some(at) = self.active {
            self.queues[at].sent = 0;
        }
        self.active
    }
}

fn ms(now_ns: u64) -> i64 {
    (now_ns / 1_000_000) as i64
}

impl SerialPolicy for LinuxCfq {
    fn add_flow(&mut self, flow: usize, _weight: Weight) {
        if let Some(queue) = self.queues.get_mut(flow) {
            queue.staged.clear();
            // The queue keeps its memory, because verbs must not allocate.
            let staged = std::mem::take(&mut queue.staged);
            *queue = Queue { staged, idle_window: true, ..Queue::default() };
        }
        self.active = self.active.filter(|&active| active != flow);
    }

    fn insert(&mut self, now_ns: u64, arrival: &Arrival) {
        let is_async = self.has_async_writes && arrival.op == Op::Write;
        let now_ms = ms(now_ns);
        let at = if is_async { self.writes() } else { arrival.flow };
        self.queues[at].staged.push_back((arrival.job, arrival.flow));
        self.sent[arrival.job.0 as usize] = Sent { queue: at, arrived_ms: now_ms };
        if !self.queues[at].is_busy {
            self.enter(at, now_ms, false);
        }
        if !is_async {
            self.update_idle_window(at, now_ms, arrival.length);
        }
        if let Some(active) = self.active.filter(|&active| active != at)
            && self.preempts(at, active, now_ms)
        {
            if self.queues[active].tree_of_its_kind() != self.queues[at].tree_of_its_kind() {
                // Without this the service of the preempted queue's tree would continue
                // (`cfq_preempt_queue`).
                self.tree_ends_ms = now_ms - 1;
            }
            self.expire(active, now_ms, true);
            self.enter(at, now_ms, true);
        }
    }

    fn grow(&mut self, _now_ns: u64, _arrival: &Arrival) {}

    fn cancel(&mut self, job: Job, _flow: usize) {
        let Sent { queue: at, .. } = self.sent[job.0 as usize];
        let queue = &mut self.queues[at];
        queue.staged.retain(|&(staged, _)| staged != job);
        if queue.staged.is_empty() && self.active != Some(at) {
            queue.is_busy = false;
        }
    }

    fn set_lane(&mut self, flow: usize, lane: Lane) {
        self.lanes[flow] = lane;
    }

    /// A queue that NASS holds back keeps its turn, and the first other queue that may send is
    /// served.
    fn select(&mut self, now_ns: u64, lanes: Lanes) -> Selection {
        let now_ms = ms(now_ns);
        // While nothing is queued, no turn ends (`rq_queued`): the active queue keeps its turn.
        if self.queues.iter().all(|queue| queue.staged.is_empty()) {
            return Selection::Nothing;
        }
        let Some(at) = self.turn(now_ms) else { return Selection::Nothing };
        if let Some(staged) = self.admitted(at, lanes) {
            return match self.may_dispatch(at, now_ms) {
                true => self.serve(at, staged, now_ms),
                false => Selection::Nothing,
            };
        }
        let others = self
            .busy()
            .filter_map(|(other, queue)| Some((queue.place, other, self.admitted(other, lanes)?)));
        let Some((_, other, staged)) = others.min() else { return Selection::Nothing };
        let selection = self.serve(other, staged, now_ms);
        // A queue normally leaves its tree at the end of its turn. This queue has no turn, so it
        // leaves its tree here if it is empty. Otherwise it would later get a turn with nothing to
        // send, and the drive could stand still.
        self.queues[other].is_busy &= !self.queues[other].staged.is_empty();
        selection
    }

    fn completed(&mut self, now_ns: u64, job: Job, _flow: usize, _outcome: Outcome) {
        let now_ms = ms(now_ns);
        let Sent { queue: at, arrived_ms } = self.sent[job.0 as usize];
        let queue = &mut self.queues[at];
        queue.on_drive = queue.on_drive.saturating_sub(1);
        if !queue.is_async {
            queue.think.last_end_ms = now_ms;
            let tree = if queue.is_busy { queue.tree } else { queue.tree_of_its_kind() };
            self.think[tree as usize].last_end_ms = now_ms;
            if now_ms >= arrived_ms + LATE_MS {
                self.late_ms = now_ms;
            }
        }
        if self.active == Some(at) {
            if self.queues[at].slice.is_none() {
                let end_ms = now_ms + self.slice_ms(at);
                self.queues[at].slice = Some(Slice { start_ms: now_ms, end_ms });
            }
            if self.queues[at].is_used_up(now_ms) {
                self.expire(at, now_ms, true);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fairq_core::Op;

    const MS: u64 = 1_000_000;

    /// Two queues, and requests by number.
    struct Two {
        policy: LinuxCfq,
        next: u32,
        /// The last request of each queue.
        last: [u32; 2],
        now_ns: u64,
    }

    impl Two {
        fn new(waits: bool) -> Two {
            Two::with(waits, false)
        }

        fn with(waits: bool, has_async_writes: bool) -> Two {
            let bounds = SerialConfig::new(1, 2, 256);
            let mut policy = LinuxCfq::new(&bounds, waits, 8, has_async_writes);
            policy.add_flow(0, Weight::DEFAULT);
            policy.add_flow(1, Weight::DEFAULT);
            Two { policy, next: 0, last: [0; 2], now_ns: MS }
        }

        fn sends(&mut self, flow: usize, count: u32, length: u32, op: Op) {
            for _ in 0..count {
                let arrival = Arrival {
                    job: Job(self.next),
                    flow,
                    weight: Weight::DEFAULT,
                    op,
                    offset: 0,
                    length,
                    cost: u64::from(length),
                };
                self.last[flow] = self.next;
                self.next += 1;
                self.policy.insert(self.now_ns, &arrival);
            }
        }

        /// Dispatches all requests that may be dispatched; returns their flows.
        fn goes(&mut self) -> Vec<usize> {
            let mut flows = Vec::new();
            while let Selection::Serve(_, flow) = self.policy.select(self.now_ns, Lanes::All) {
                flows.push(flow);
            }
            flows
        }

        fn drains(&mut self, flow: usize, count: u32) {
            (0..count).for_each(|_| self.comes_back(flow, 0));
        }

        fn comes_back(&mut self, flow: usize, after_ns: u64) {
            self.now_ns += after_ns;
            self.policy.completed(self.now_ns, Job(self.last[flow]), flow, Outcome::Done);
        }
    }

    #[test]
    fn a_queue_that_went_out_of_turn_gets_no_turn_with_nothing_to_send() {
        let mut two = Two::new(true);
        two.sends(0, 1, 4096, Op::Read);
        assert_eq!(two.goes(), [0]);
        two.sends(0, 1, 4096, Op::Read);
        two.policy.set_lane(0, Lane::Shut);
        two.sends(1, 1, 4096, Op::Read);
        assert_eq!(two.goes(), [1], "it goes while the other is held back");
        two.comes_back(0, MS);
        // The other queue's slice ends at the moment when this queue may send again.
        two.comes_back(1, 200 * MS);
        two.policy.set_lane(0, Lane::Common);
        assert_eq!(two.goes(), [0]);
    }

    #[test]
    fn no_queue_is_waited_for_that_has_nothing_on_the_drive() {
        let mut two = Two::new(true);
        two.sends(0, 1, 4096, Op::Read);
        assert_eq!(two.goes(), [0]);
        two.comes_back(0, MS);
        two.sends(1, 8, 4096, Op::Read);
        assert_eq!(two.goes(), [1; 8], "at once, though a reader has just been answered");
    }

    /// The shallow queue is in the tree of seeking queues and the deep queue in the other tree, so
    /// each is alone in its tree.
    #[test]
    fn a_queue_alone_in_its_tree_keeps_the_drive_while_its_own_are_on_it() {
        for (waits, op) in [(true, Op::Read), (true, Op::Write), (false, Op::Read)] {
            let mut two = Two::new(waits);
            for _ in 0..3 {
                two.sends(0, 2, 4096, op);
                assert_eq!(two.goes(), [0, 0]);
                two.comes_back(0, MS);
                two.comes_back(0, 0);
            }
            two.sends(1, 32, 128 << 10, op);
            assert_eq!(two.goes(), [1; 32], "alone as many as there are");
            two.sends(0, 2, 4096, op);
            two.sends(1, 8, 128 << 10, op);
            two.comes_back(1, MS);
            // Its tree is served for 300 ms, because it was the only one.
            two.comes_back(1, 301 * MS);
            let waiting = (two.goes(), two.comes_back(0, MS), two.goes());
            two.comes_back(0, MS);
            match waits {
                true => {
                    assert_eq!((waiting.0, waiting.2), (vec![0, 0], vec![]), "one is still out");
                    two.drains(1, 29);
                    assert!(two.goes().starts_with(&[1]), "{op:?}: then it is the other's turn");
                }
                false => assert!(waiting.2.is_empty(), "four of the other's are out as it is"),
            }
        }
    }

    #[test]
    fn without_waiting_the_other_goes_at_once() {
        for waits in [false, true] {
            let mut two = Two::new(waits);
            two.sends(0, 2, 128 << 10, Op::Read);
            assert_eq!(two.goes(), [0, 0]);
            two.sends(1, 8, 128 << 10, Op::Read);
            assert_eq!(two.goes(), [1; 8], "in one tree, whether it waits or not");
        }
    }

    #[test]
    fn of_two_deep_queues_one_that_runs_empty_loses_its_turn() {
        let mut two = Two::new(true);
        // Large requests do not seek: both queues are in the tree for which CFQ waits, and neither
        // is alone.
        two.sends(0, 4, 128 << 10, Op::Read);
        two.sends(1, 4, 128 << 10, Op::Read);
        assert_eq!(two.goes(), [0, 0, 0, 0, 1, 1, 1, 1]);
    }

    #[test]
    fn beside_another_a_queue_has_four_on_the_drive_and_then_eight() {
        let mut two = Two::new(true);
        two.sends(0, 64, 4096, Op::Read);
        two.sends(1, 64, 4096, Op::Read);
        assert_eq!(two.goes(), [0; 4], "nothing has come back");
        two.comes_back(0, MS);
        assert_eq!(two.goes(), [0; 5], "three are out, and eight may be");
        // At 8 ms for each request, the requests on the drive take longer than the rest of the
        // slice of 100 ms.
        two.comes_back(0, 75 * MS);
        assert_eq!(two.goes(), []);
        for _ in 0..4 {
            two.comes_back(0, 0);
        }
        assert_eq!(two.goes(), [0], "four again");
        two.comes_back(0, 41 * MS);
        assert_eq!(two.goes(), [1; 4], "the slice is over");
    }

    #[test]
    fn asynchronous_writes_wait_while_a_reader_has_something_on_the_drive() {
        let mut two = Two::with(true, true);
        two.sends(0, 2, 4096, Op::Read);
        assert_eq!(two.goes(), [0, 0]);
        two.sends(1, 8, 4096, Op::Write);
        assert_eq!(two.goes(), []);
        two.comes_back(0, MS);
        assert_eq!(two.goes(), [], "one is still there");
        two.comes_back(0, MS);
        assert_eq!(two.goes(), [1; 8], "none is late: ten and more at once");
        two.sends(0, 1, 4096, Op::Read);
        assert_eq!(two.goes(), [], "a reader alone in its tree waits until writes are through");
        two.drains(1, 8);
        assert_eq!(two.goes(), [0]);
    }

    #[test]
    fn a_read_takes_the_drive_from_asynchronous_writes() {
        let mut two = Two::with(false, true);
        two.sends(1, 64, 4096, Op::Write);
        assert_eq!(two.goes(), [1; 10], "alone it has what a second without late reads gives it");
        two.sends(0, 1, 4096, Op::Read);
        assert_eq!(two.goes(), [0]);
        two.comes_back(1, MS);
        assert_eq!(two.goes(), [], "until the read has come back");
        two.comes_back(0, MS);
        assert_eq!(two.goes(), [1; 1]);
    }

    #[test]
    fn a_late_read_holds_asynchronous_writes_back() {
        let mut two = Two::with(true, true);
        two.sends(0, 1, 4096, Op::Read);
        assert_eq!(two.goes(), [0]);
        two.comes_back(0, 125 * MS);
        two.sends(1, 64, 4096, Op::Write);
        assert_eq!(two.goes(), [1], "one, so that they go on at all");
        two.now_ns += 200 * MS;
        assert_eq!(two.goes(), [1], "two after two tenths of a second");
    }

    #[test]
    fn asynchronous_writes_of_all_flows_are_one_queue_of_sixteen_a_turn() {
        let mut two = Two::with(false, true);
        two.now_ns = 3_000 * MS;
        two.sends(0, 12, 4096, Op::Write);
        two.sends(1, 12, 4096, Op::Write);
        assert_eq!(two.goes(), [[0; 12], [1; 12]].concat(), "in the order in which they came");
        two.drains(0, 12);
        two.drains(1, 12);
        two.sends(1, 24, 4096, Op::Write);
        two.policy.set_lane(1, Lane::Shut);
        two.sends(0, 2, 4096, Op::Write);
        assert_eq!(two.goes(), [0, 0], "a flow that may not go is passed");
    }

    #[test]
    fn asynchronous_writes_go_beside_a_reader_that_is_held_back() {
        let mut two = Two::with(true, true);
        two.sends(0, 2, 4096, Op::Read);
        assert_eq!(two.goes(), [0, 0]);
        two.sends(0, 1, 4096, Op::Read);
        two.policy.set_lane(0, Lane::Shut);
        two.sends(1, 2, 4096, Op::Write);
        assert_eq!(two.goes(), [1, 1]);
    }

    #[test]
    fn a_queue_that_may_not_go_keeps_its_turn() {
        let mut two = Two::new(false);
        two.sends(0, 8, 4096, Op::Read);
        two.sends(1, 8, 4096, Op::Read);
        assert_eq!(two.goes(), [0; 4]);
        two.policy.set_lane(0, Lane::Shut);
        assert_eq!(two.policy.select(two.now_ns, Lanes::All), Selection::Serve(Job(8), 1));
        two.policy.set_lane(0, Lane::Common);
        two.comes_back(0, MS);
        assert_eq!(two.goes()[0], 0);
    }
}

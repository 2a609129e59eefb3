//! The verbs of a port with caps: requests wait in lanes before the policy.

use super::*;

impl<Q: Port, P: Platform> CappedPort<Q, P> {
    /// Keeps the request until the caps on its path let it go.
    #[cold]
    fn wait(&mut self, now: Time, request: &Request, path: &Path, wait: Wait) {
        let (flow, is_write) = (request.flow, is_write(request));
        let number = self.waiting.lane(flow, is_write);
        // A lane of a flow that is gone has requests, so its slot is not another flow's.
        if number.is_none() {
            let weight = self.weight(flow);
            let at_ns = self.shared.again_ns(now, wait, path, request, weight);
            self.waiting.open(request, at_ns, wait.by);
            self.count_lane(flow, is_write, path, weight);
        }
        let by = self.waiting.push(now.ns(), request);
        self.held = self.held.saturating_add(1);
        let group = self.shared.numbered(by);
        self.shared.account(flow).into_iter().chain(group).for_each(Account::count);
    }

    /// Weight of a lane of the flow beside others.
    fn weight(&self, flow: FlowId) -> u64 {
        self.shared.account(flow).map_or(0, |account| account.weight.load(Ordering::Relaxed))
    }

    /// Counts the flow's lane in its groups, if the lane, its groups or its weight are new.
    fn count_lane(&mut self, flow: FlowId, is_write: bool, path: &Path, weight: u64) {
        let Some(lane) = self.waiting.lane_mut(flow, is_write) else { return };
        if (lane.groups, lane.weight) == (path.groups, weight) {
            return;
        }
        self.shared.lane(flow, &lane.groups, is_write, lane.weight, false);
        (lane.groups, lane.weight) = (path.groups, weight);
        self.shared.lane(flow, &lane.groups, is_write, lane.weight, true);
    }

    fn close(&mut self, number: u32) {
        if let Some(Lane { flow: Some(flow), is_write, groups, weight, .. }) =
            self.waiting.close(number)
        {
            self.shared.lane(flow, &groups, is_write, weight, false);
        }
    }

    /// Takes out a waiting request. Closes its lane if that is empty now, else gives the lane's
    /// number.
    fn leave(&mut self, now_ns: u64, request: &Request) -> Option<u32> {
        let (waiter, lane) = self.waiting.take(request);
        self.held = self.held.saturating_sub(1);
        if let Some(Waiter { since_ns, by, .. }) = waiter {
            let held_ns = now_ns.saturating_sub(since_ns);
            let group = self.shared.numbered(by);
            let all = self.shared.account(request.flow).into_iter().chain(group);
            all.for_each(|account| account.count_off(held_ns));
        }
        let (number, is_empty) = lane?;
        if !is_empty {
            return Some(number);
        }
        self.close(number);
        None
    }

    /// Gives the policy the requests that caps let go; returns one that is to be issued at once.
    #[cold]
    fn release(&mut self, now_ns: u64, wake: &mut PortSet) -> Option<Next> {
        let now = Time::of_ns(now_ns);
        for _ in 0..AT_ONCE {
            let (number, request) = self.waiting.first()?;
            if self.waiting.due_ns().is_none_or(|at_ns| at_ns > now_ns) {
                return None;
            }
            let path = self.shared.path(request.flow, request.op);
            let weight = self.weight(request.flow);
            // Weight and groups may have changed while the lane waited, and turns are computed from
            // them.
            self.count_lane(request.flow, is_write(&request), &path, weight);
            if let Err(wait) = self.shared.take(now, &path, &request) {
                let at_ns = self.shared.again_ns(now, wait, &path, &request, weight);
                self.waiting.try_at(number, at_ns);
                self.waiting.is_held_by(number, wait.by);
                continue;
            }
            let is_fenced =
                self.waiting.lanes.get(number as usize).is_some_and(|lane| lane.is_fenced);
            if let Some(number) = self.leave(now_ns, &request) {
                let pace_ns = self.shared.pace_ns(now, &path, &request, weight);
                self.waiting.sent(number, now_ns, pace_ns);
            }
            // The barrier came while the request waited here, and stands on both sides of it.
            if is_fenced {
                self.inner.barrier(request.flow);
            }
            let submitted = self.pass(now_ns, &request, wake);
            if is_fenced {
                self.inner.barrier(request.flow);
            }
            match submitted {
                Ok(Submitted::Staged) => {}
                Ok(Submitted::Issue { class }) => {
                    return Some(Next::Issue { tag: request.tag, class });
                }
                // Its flow is gone.
                Err(_) => return self.stray(now_ns, request.tag, wake),
            }
        }
        // If more lanes are due, `next` returns their time, and its caller calls again at once.
        None
    }

    /// The request of a flow that is gone is issued before all others.
    fn stray(&mut self, now_ns: u64, tag: Tag, wake: &mut PortSet) -> Option<Next> {
        let goes = self.inner.expedite(now_ns, tag, wake);
        goes.then_some(Next::Issue { tag, class: Class::Medium })
    }

    /// Submits to the policy a request that caps have paid for.
    fn pass(
        &mut self,
        now_ns: u64,
        request: &Request,
        wake: &mut PortSet,
    ) -> Result<Submitted, SubmitError> {
        let submitted = self.inner.submit(now_ns, request, wake);
        match submitted {
            Ok(_) => {
                self.waiting.pass(request, self.shared.changed());
                self.passed = self.passed.saturating_add(1);
            }
            Err(_) => self.shared.give_back(request),
        }
        submitted
    }

    /// Forgets a request that caps have paid for, after its end.
    fn is_gone(&mut self, tag: Tag) {
        if matches!(self.waiting.place(tag), Place::Passed | Place::Again) {
            self.waiting.put(tag, None);
            self.passed = self.passed.saturating_sub(1);
        }
    }

    /// Takes the request out of its lane, if it waits for a cap.
    fn leave_lane(&mut self, now_ns: u64, tag: Tag) {
        let Some(request) = self.waiter(tag) else { return };
        if let Some(number) = self.leave(now_ns, &request) {
            // The lane's next request may need less.
            self.waiting.try_at(number, now_ns);
        }
    }

    /// State of a request that the policy has and caps have paid for.
    fn passed(&self, tag: Tag) -> Option<Waiter> {
        if self.passed == 0 || !matches!(self.waiting.place(tag), Place::Passed | Place::Again) {
            return None;
        }
        self.waiting.waiter(tag.0)
    }

    /// A request that waits for a cap.
    fn waiter(&self, tag: Tag) -> Option<Request> {
        if self.held == 0 || self.waiting.place(tag) != Place::Lane {
            return None;
        }
        self.waiting.waiter(tag.0).map(|waiter| waiter.request)
    }
}

impl<Q: Port, P: Platform> CappedPort<Q, P> {
    /// `submit` while some flow has caps. Out of line, like `next_held`, so that without caps a
    /// verb is the policy's own.
    #[cold]
    #[inline(never)]
    fn submit_capped(
        &mut self,
        now_ns: u64,
        request: &Request,
        wake: &mut PortSet,
    ) -> Result<Submitted, SubmitError> {
        let now = Time::of_ns(now_ns);
        // While nothing waits here there is no tag and no lane to look up.
        if self.held == 0 {
            match self.shared.take_own(now, request) {
                Own::Uncounted => return self.inner.submit(now_ns, request, wake),
                Own::Taken => return self.pass(now_ns, request, wake),
                Own::Unknown => {}
            }
        } else if self.waiting.place(request.tag) == Place::Lane {
            return Err(SubmitError::BadTag);
        }
        let path = self.shared.path(request.flow, request.op);
        if path.is_empty() {
            return self.inner.submit(now_ns, request, wake);
        }
        // Requests in a lane are before it.
        let may_go = match self.waiting.lane(request.flow, is_write(request)) {
            None => self.shared.take(now, &path, request),
            Some(_) => Err(Wait { until: now, by: 0 }),
        };
        match may_go {
            Ok(()) => self.pass(now_ns, request, wake),
            Err(wait) => {
                self.inner.hold(request.tag, request.flow)?;
                self.wait(now, request, &path, wait);
                Ok(Submitted::Staged)
            }
        }
    }

    /// `next` while requests wait here.
    #[cold]
    #[inline(never)]
    fn next_held(&mut self, now_ns: u64, wake: &mut PortSet) -> Answer {
        // After a `Join` the policy continues its command.
        if !self.is_joining
            && let Some(next) = self.release(now_ns, wake)
        {
            return next.into();
        }
        let next = self.inner.next(now_ns, wake);
        self.is_joining = matches!(next, Next::Join { .. });
        let due_ns = self.waiting.due_ns().unwrap_or(u64::MAX);
        let next = match next {
            Next::WaitUntil(at_ns) => Next::WaitUntil(at_ns.min(due_ns)),
            Next::Blocked | Next::Idle if self.held > 0 => Next::WaitUntil(due_ns),
            next => next,
        };
        next.into()
    }
}

impl<Q: Port, P: Platform> layer::PortLayer for CappedPort<Q, P> {
    type Inner = Q;

    fn inner(&self) -> &Q {
        &self.inner
    }

    fn inner_mut(&mut self) -> &mut Q {
        &mut self.inner
    }

    #[inline(always)]
    fn submit(
        &mut self,
        now_ns: u64,
        request: &Request,
        wake: &mut PortSet,
    ) -> Result<Submitted, SubmitError> {
        if self.shared.is_on() {
            return self.submit_capped(now_ns, request, wake);
        }
        self.inner.submit(now_ns, request, wake)
    }

    #[inline(always)]
    fn next(&mut self, now_ns: u64, wake: &mut PortSet) -> Next {
        if self.held == 0 {
            return self.inner.next(now_ns, wake);
        }
        self.next_held(now_ns, wake).into()
    }

    #[inline(always)]
    fn complete(&mut self, now_ns: u64, tag: Tag, outcome: Outcome, wake: &mut PortSet) -> bool {
        let was_issued = self.inner.complete(now_ns, tag, outcome, wake);
        if was_issued && self.passed > 0 {
            self.is_gone(tag);
        }
        was_issued
    }

    fn cancel(&mut self, now_ns: u64, tag: Tag, wake: &mut PortSet) -> bool {
        self.leave_lane(now_ns, tag);
        let passed = self.passed(tag);
        let is_gone = self.inner.cancel(now_ns, tag, wake);
        if let Some(Waiter { place, request, by: changed, .. }) = passed.filter(|_| is_gone) {
            self.is_gone(tag);
            // A request that was on the device stays charged, and buckets of other caps have given
            // nothing.
            if place == Place::Passed && changed == self.shared.changed() {
                self.shared.give_back(&request);
            }
        }
        is_gone
    }

    /// The request takes nothing from a cap that it waits for.
    fn expedite(&mut self, now_ns: u64, tag: Tag, wake: &mut PortSet) -> bool {
        self.leave_lane(now_ns, tag);
        self.inner.expedite(now_ns, tag, wake)
    }

    fn requeue(&mut self, now_ns: u64, tag: Tag, wake: &mut PortSet) -> Option<Submitted> {
        let requeued = self.inner.requeue(now_ns, tag, wake);
        if requeued.is_some()
            && let Some(passed) = self.passed(tag)
        {
            self.waiting.put(tag, Some(Waiter { place: Place::Again, ..passed }));
        }
        requeued
    }

    fn grow(&mut self, now_ns: u64, tag: Tag, growth: &Growth, wake: &mut PortSet) -> bool {
        if let Some(mut waiter) = self.waiter(tag).and_then(|_| self.waiting.waiter(tag.0)) {
            // The caps are checked when it goes, for its whole length; its cost is computed then,
            // too.
            let request = &mut waiter.request;
            request.offset = request.offset.min(growth.offset);
            request.length = request.length.saturating_add(growth.length);
            self.waiting.put(tag, Some(waiter));
            return true;
        }
        let passed = self.passed(tag);
        let has_grown = self.inner.grow(now_ns, tag, growth, wake);
        if let Some(mut waiter) = passed.filter(|_| has_grown) {
            self.shared.owe(Time::of_ns(now_ns), waiter.request.flow, growth);
            waiter.request.length = waiter.request.length.saturating_add(growth.length);
            self.waiting.put(tag, Some(waiter));
        }
        has_grown
    }

    layer::forward_port! { hold admit }

    fn has_work(&self) -> bool {
        self.held > 0 || self.inner.has_work()
    }

    fn staged(&self, flow: FlowId) -> Option<Tag> {
        let first = self.waiting.lanes(flow).find_map(|lane| lane.queue.first());
        first.map(Tag).or_else(|| self.inner.staged(flow))
    }

    fn flow_stats(&self, flow: FlowId) -> FlowStats {
        let mut stats = self.inner.flow_stats(flow);
        // The policy knows the requests that wait here, and does not have them staged.
        for lane in self.waiting.lanes(flow) {
            stats.staged = stats.staged.saturating_add(lane.count);
            stats.in_flight = stats.in_flight.saturating_sub(lane.count);
        }
        stats
    }

    fn barrier(&mut self, flow: FlowId) {
        self.inner.barrier(flow);
        for is_write in [false, true] {
            if let Some(lane) = self.waiting.lane_mut(flow, is_write) {
                lane.is_fenced = true;
            }
        }
    }

    fn reason(&self, tag: Option<Tag>) -> Reason {
        let waits = match tag {
            Some(tag) => self.waiter(tag).is_some(),
            None => self.held > 0 && !self.inner.has_work(),
        };
        if !waits {
            return self.inner.reason(tag);
        }
        let first = || self.waiting.first().map(|(_, request)| request.tag);
        let waiter = tag.or_else(first).and_then(|Tag(tag)| self.waiting.waiter(tag));
        let by_group = waiter.is_some_and(|waiter| waiter.by != 0);
        let held = if by_group { Held::GroupCap } else { Held::Cap };
        Reason { held: Some(held), ..Reason::default() }
    }
}

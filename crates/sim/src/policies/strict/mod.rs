//! The policies that the papers' authors measured, to the letter, for the laboratory alone: the
//! authors' claims are about these algorithms, and fairq's own differ from them (decisions 6 and
//! 8). No run of the laboratory calls the verbs that cancel, requeue, hold or grow a request, so
//! these policies refuse them. Accesses to their shared words are traced like those of the core's
//! policies; accesses to their statistics are not.

/// The verbs of a [`fairq_core::Port`] that no run of the laboratory calls. They refuse, and report
/// nothing.
macro_rules! unused_verbs {
    () => {
        fn admit(&self, flow: FlowId) -> Result<(), SubmitError> {
            self.shared.flows.weight(flow).map(|_| ()).ok_or(SubmitError::NoSuchFlow)
        }
        fn cancel(&mut self, _now_ns: u64, _tag: Tag, _wake: &mut PortSet) -> bool {
            false
        }
        fn expedite(&mut self, _now_ns: u64, _tag: Tag, _wake: &mut PortSet) -> bool {
            false
        }
        fn hold(&mut self, _tag: Tag, _flow: FlowId) -> Result<(), SubmitError> {
            Err(SubmitError::BadTag)
        }
        fn requeue(&mut self, _now: u64, _tag: Tag, _wake: &mut PortSet) -> Option<Submitted> {
            None
        }
        fn grow(&mut self, _now: u64, _tag: Tag, _growth: &Growth, _wake: &mut PortSet) -> bool {
            false
        }
        fn staged(&self, _flow: FlowId) -> Option<Tag> {
            None
        }
        fn flow_stats(&self, _flow: FlowId) -> FlowStats {
            FlowStats::default()
        }
        fn barrier(&mut self, _flow: FlowId) {}
        fn reason(&self, _tag: Option<Tag>) -> Reason {
            Reason::default()
        }
    };
}

pub(super) mod d2fq;
pub(super) mod mqfq;
pub(super) mod slots;

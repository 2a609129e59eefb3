//! The signatures of all methods of [`Policy`](crate::Policy) and
//! [`Port`](crate::Port), for macros that implement them for a
//! type of which each variant is a policy.

/// The types that the signatures use.
#[doc(hidden)]
pub mod names {
    pub use crate::contract::flow::{FlowError, FlowId, Weight};
    pub use crate::contract::platform::Platform;
    pub use crate::contract::port::{
        ClassWeights, FlowStats, Growth, Next, Outcome, Policy, Port, Reason, Request, Stats,
        SubmitError, Submitted, Tag, TuneError, Tuning,
    };
    pub use crate::contract::port_set::PortSet;
    pub use crate::contract::share::{
        CapStats, Caps, CapsOf, Group, GroupId, GroupStats, Limits, Share, ShareStats, Target,
        TargetStats,
    };
}

/// Calls a macro with the signatures of all methods of [`Policy`](crate::Policy).
#[macro_export]
macro_rules! policy_methods {
    ($with:ident $($more:tt)*) => {
        $with! {
            $($more)*
            fn add_flow_as(known: Option<FlowId>, weight: Weight) -> Result<FlowId, FlowError>;
            fn set_weight(flow: FlowId, weight: Weight) -> Result<(), FlowError>;
            fn set_urgent(flow: FlowId, urgent: bool) -> Result<(), FlowError>;
            fn set_weights(weights: &[(FlowId, Weight)]) -> ();
            fn tune(tuning: Tuning, wake: &mut PortSet) -> Result<(), TuneError>;
            fn remove_flow(flow: FlowId) -> Result<PortSet, FlowError>;
            fn tick(now_ns: u64, wake: &mut PortSet) -> Option<u64>;
            fn class_weights() -> Option<ClassWeights>;
            fn stats() -> Stats;
        }
    };
}

/// Calls a macro with the signatures of all methods of [`Limits`](crate::Limits).
#[macro_export]
macro_rules! limit_methods {
    ($with:ident) => {
        $with! {
            fn set_target(flow: FlowId, target: Option<Target>) -> Result<(), FlowError>;
            fn target(flow: FlowId) -> Option<TargetStats>;
            fn set_caps(flow: FlowId, caps: &Caps) -> Result<(), FlowError>;
            fn caps(flow: FlowId) -> Option<CapStats>;
            fn resume_caps(of: CapsOf, before: &CapStats) -> ();
            fn set_group(id: GroupId, group: Option<&Group>) -> Result<(), FlowError>;
            fn group(id: GroupId) -> Option<GroupStats>;
            fn set_share(flow: FlowId, share: &Share) -> Result<(), FlowError>;
            fn share(flow: FlowId) -> Option<ShareStats>;
        }
    };
}

/// Calls a macro with the signatures of all methods of [`Port`](crate::Port): those that change the
/// port, and those that do not.
#[macro_export]
macro_rules! port_methods {
    ($with:ident $($more:tt)*) => {
        $with! {
            $($more)*
            mut {
                fn submit(
                    now_ns: u64,
                    request: &Request,
                    wake: &mut PortSet,
                ) -> Result<Submitted, SubmitError>;
                fn next(now_ns: u64, wake: &mut PortSet) -> Next;
                fn complete(
                    now_ns: u64,
                    tag: Tag,
                    outcome: Outcome,
                    wake: &mut PortSet,
                ) -> bool;
                fn cancel(now_ns: u64, tag: Tag, wake: &mut PortSet) -> bool;
                fn expedite(now_ns: u64, tag: Tag, wake: &mut PortSet) -> bool;
                fn hold(tag: Tag, flow: FlowId) -> Result<(), SubmitError>;
                fn requeue(now_ns: u64, tag: Tag, wake: &mut PortSet) -> Option<Submitted>;
                fn grow(now_ns: u64, tag: Tag, growth: &Growth, wake: &mut PortSet) -> bool;
                fn barrier(flow: FlowId) -> ();
            }
            const {
                fn admit(flow: FlowId) -> Result<(), SubmitError>;
                fn has_work() -> bool;
                fn staged(flow: FlowId) -> Option<Tag>;
                fn flow_stats(flow: FlowId) -> FlowStats;
                fn reason(tag: Option<Tag>) -> Reason;
            }
        }
    };
}

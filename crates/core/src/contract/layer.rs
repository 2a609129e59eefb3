//! Layers: a layer surrounds a policy and is a policy itself. It implements the methods that it
//! changes, and forwards the others to the policy inside.
//!
//! **Problem.** Costs, D and limits are kept by layers around policies. Each is a [`Policy`]
//! with [`Port`]s, and changes some of their methods. A layer must not miss one by omission: a
//! layer that counts bytes and does not see `grow` counts wrong. **Model.** `Layer` and
//! `PortLayer` have the same methods without bodies, so that a layer that omits one does not
//! compile. It implements a method, or names it in `forward_policy` or `forward_port`, which call
//! the same method of the policy inside. The macro `layer` makes a policy of it. The signatures are
//! written once, in `policy_methods` and `port_methods`, from which all of that is made.
//!
//! **Speed.** Everything is generic over the policy inside and `#[inline]`: a method that a layer
//! does not change costs no call.
//!
//! **Example.** `struct Quiet<L>` that counts `tick` implements `inner` and `tick`, names the other
//! methods in `forward_policy!(...)`, and `layer!(Quiet, QuietPort)` stands below it.

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

use names::*;

/// Calls a macro with the signatures of all methods of [`Policy`] that a layer may change.
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
            fn costs_vary(is_much: bool) -> ();
            fn class_weights() -> Option<ClassWeights>;
            fn stats() -> Stats;
        }
    };
}

/// Calls a macro with the signatures of all methods of [`Limits`].
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

/// Calls a macro with the signatures of all methods of [`Port`]: those that change the port, and
/// those that do not.
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

macro_rules! define_layer {
    ($(fn $name:ident($($arg:ident: $of:ty),*) -> $gives:ty;)*) => {
        /// A policy around another.
        pub(crate) trait Layer {
            /// The policy inside.
            type Inner: Policy;

            fn inner(&self) -> &Self::Inner;

            $(fn $name(&self, $($arg: $of),*) -> $gives;)*
        }
    };
}

macro_rules! define_port_layer {
    (
        mut { $(fn $name:ident($($arg:ident: $of:ty),* $(,)?) -> $gives:ty;)* }
        const { $(fn $look:ident($($what:ident: $kind:ty),*) -> $shows:ty;)* }
    ) => {
        /// A port around another.
        pub(crate) trait PortLayer {
            /// The port inside.
            type Inner: Port;

            fn inner(&self) -> &Self::Inner;
            fn inner_mut(&mut self) -> &mut Self::Inner;

            $(fn $name(&mut self, $($arg: $of),*) -> $gives;)*
            $(fn $look(&self, $($what: $kind),*) -> $shows;)*
        }
    };
}

policy_methods!(define_layer);
port_methods!(define_port_layer);

/// Defines `forward_policy`, which takes names of methods and implements each by a call of the
/// policy inside.
macro_rules! define_forward_policy {
    ($d:tt $(fn $name:ident($($arg:ident: $of:ty),*) -> $gives:ty;)*) => {
        macro_rules! forward_policy {
            $((@one $name) => {
                #[inline]
                fn $name(&self, $($arg: $of),*) -> $gives {
                    self.inner().$name($($arg),*)
                }
            };)*
            ($d($d method:ident)*) => { $d($crate::contract::layer::forward_policy!(@one $d method);)* };
        }
    };
}

/// Defines `forward_port`, which does the same for a port.
macro_rules! define_forward_port {
    (
        $d:tt
        mut { $(fn $name:ident($($arg:ident: $of:ty),* $(,)?) -> $gives:ty;)* }
        const { $(fn $look:ident($($what:ident: $kind:ty),*) -> $shows:ty;)* }
    ) => {
        macro_rules! forward_port {
            $((@one $name) => {
                #[inline]
                fn $name(&mut self, $($arg: $of),*) -> $gives {
                    self.inner_mut().$name($($arg),*)
                }
            };)*
            $((@one $look) => {
                #[inline]
                fn $look(&self, $($what: $kind),*) -> $shows {
                    self.inner().$look($($what),*)
                }
            };)*
            ($d($d method:ident)*) => { $d($crate::contract::layer::forward_port!(@one $d method);)* };
        }
    };
}

policy_methods!(define_forward_policy $);
port_methods!(define_forward_port $);

/// The bodies of a [`Policy`] that is a [`Layer`].
macro_rules! policy_by_layer {
    ($(fn $name:ident($($arg:ident: $of:ty),*) -> $gives:ty;)*) => {
        $(
            #[inline]
            fn $name(&self, $($arg: $of),*) -> $gives {
                Layer::$name(self, $($arg),*)
            }
        )*
    };
}

/// The bodies of a [`Port`] that is a [`PortLayer`].
macro_rules! port_by_layer {
    (
        mut { $(fn $name:ident($($arg:ident: $of:ty),* $(,)?) -> $gives:ty;)* }
        const { $(fn $look:ident($($what:ident: $kind:ty),*) -> $shows:ty;)* }
    ) => {
        $(
            #[inline(always)]
            fn $name(&mut self, $($arg: $of),*) -> $gives {
                PortLayer::$name(self, $($arg),*)
            }
        )*
        $(
            #[inline]
            fn $look(&self, $($what: $kind),*) -> $shows {
                PortLayer::$look(self, $($what),*)
            }
        )*
    };
}

/// Makes a policy of a [`Layer`], and a port of its [`PortLayer`].
macro_rules! layer {
    ($policy:ident, $port:ident) => {
        const _: () = {
            use $crate::contract::layer::names::*;
            use $crate::contract::layer::{
                Layer, PortLayer, policy_by_layer, policy_methods, port_by_layer, port_methods,
            };

            impl<L: Policy, P: Platform> Policy for $policy<L, P> {
                type Port = $port<L::Port, P>;
                policy_methods!(policy_by_layer);
            }

            impl<Q: Port, P: Platform> Port for $port<Q, P> {
                const IS_DIRECT: bool = Q::IS_DIRECT;
                port_methods!(port_by_layer);
            }
        };
    };
}

#[allow(clippy::single_component_path_imports, reason = "it gives the macros a path")]
pub(crate) use {
    forward_policy, forward_port, layer, policy_by_layer, policy_methods, port_by_layer,
    port_methods,
};

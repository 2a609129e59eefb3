//! [`AnyPolicy`] and [`AnyPort`]: each verb calls that of the policy inside.

use super::{AnyPolicy, AnyPort, forward};
use crate::contract::layer::names::*;
use crate::contract::layer::{policy_methods, port_methods};

macro_rules! to_the_policy {
    ($(fn $name:ident($($arg:ident: $of:ty),*) -> $gives:ty;)*) => {
        $(
            fn $name(&self, $($arg: $of),*) -> $gives {
                forward!(policy in self => policy.$name($($arg),*))
            }
        )*
    };
}

macro_rules! to_the_port {
    (
        mut { $(fn $name:ident($($arg:ident: $of:ty),* $(,)?) -> $gives:ty;)* }
        const { $(fn $look:ident($($what:ident: $kind:ty),*) -> $shows:ty;)* }
    ) => {
        $(
            fn $name(&mut self, $($arg: $of),*) -> $gives {
                forward!(port in self => port.$name($($arg),*))
            }
        )*
        $(
            fn $look(&self, $($what: $kind),*) -> $shows {
                forward!(port in self => port.$look($($what),*))
            }
        )*
    };
}

impl<P: Platform> Policy for AnyPolicy<P> {
    type Port = AnyPort<P>;
    policy_methods!(to_the_policy);
}

/// Its `submit` gives [`Submitted::Issue`] if the policy's submit is dispatch. The type does not
/// show which policy is inside, so the caller has to call `next` in any case.
impl<P: Platform> Port for AnyPort<P> {
    port_methods!(to_the_port);
}

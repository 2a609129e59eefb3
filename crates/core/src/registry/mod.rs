//! The registry of policies, one line each.
//!
//! Each policy has a module here that defines its name, knobs, promises and constructor
//! ([`Entry`]). So the policy itself depends neither on the layers around it nor on the text form
//! of its knobs. A line below adds it to [`ALL`], from which programs take names, keys, help and
//! ranges. A policy that is chosen at run time is built in one of two ways:
//!
//! - [`with`] builds it and calls a generic function with it, which is compiled for its port, as
//!   shards are (docs/decisions/0002).
//! - [`AnyPolicy`] is one type for all of them, for embedders whose loop should be compiled once.
//!   Each verb costs one more jump.
//!
//! [`build`] builds a policy that is chosen at compile time: keys and [`Shape`] are the same for
//! all policies, and each has its own type.

pub mod d2fq;
pub mod kyber_fair;
pub mod mqfq;

use alloc::string::{String, ToString};
use alloc::vec::Vec;

use crate::contract::bounds::{ConfigError, granted};
use crate::contract::layer::names::*;
use crate::contract::platform::Native;
use crate::entry::knobs::{Field, each, list};
use crate::policy::serial::entry::Alone;
use crate::policy::serial::sfqd::SfqdScheduler;
use crate::structures::topology::Topology;

pub use crate::entry::knobs::{Configure, Knob, Knobs, Unit, Values};
pub use crate::entry::{Built, Entry, Keys, Promises, Shape};

/// `none` in the registry.
pub mod none {
    use crate::contract::bounds::ConfigError;
    use crate::contract::platform::Platform;
    use crate::contract::share::Limits;
    use crate::entry::knobs::{Configure, Knobs};
    use crate::entry::{self, Built, Keys, Promises, Shape};
    use crate::policy::managed::{Managed, Stages};
    use crate::policy::none::NonePolicy;

    /// `none`.
    pub enum Entry {}

    impl entry::Entry for Entry {
        const NAME: &'static str = "none";
        const PROMISES: Promises = Promises::NONE;
        type Config = Shape;
        type Policy<P: Platform> = Managed<NonePolicy<P>, P>;

        fn config(shape: &Shape, _keys: Keys<'_>) -> Result<Shape, ConfigError> {
            Ok(shape.clone())
        }

        fn build<P: Platform>(
            shape: Shape,
            has_limits: bool,
        ) -> Result<Built<Self::Policy<P>>, ConfigError> {
            let built = NonePolicy::new(shape.ports.ports(), shape.flows, shape.tags)?;
            let stages = Stages { has_limits, ..Stages::default() };
            Managed::new(built, shape.tags, shape.flows, &stages)
        }
    }

    /// `none` has no knobs.
    impl Configure for Shape {
        fn knobs(&mut self, _knobs: &mut Knobs<'_>) {}
    }

    /// `none` by itself keeps no limits.
    impl<P: Platform> Limits for NonePolicy<P> {}
}

/// Defines a registry: `ALL`, `AnyPolicy`, `AnyPort` and `with` of these policies. The caller of
/// the macro must have in scope all names that the signatures of the contract use.
#[doc(hidden)]
#[macro_export]
macro_rules! policies {
    ($d:tt $($(#[$cfg:meta])* $variant:ident: $entry:ty,)*) => {
        /// All policies, in the order in which they are shown.
        pub static ALL: &[Registered] = &[$($(#[$cfg])* Registered::of::<$entry>()),*];

        /// A policy that is chosen while the program runs. Each verb costs one jump more than a
        /// verb of the policy's own type.
        pub enum AnyPolicy<P: Platform = Native> {
            $(
                $(#[$cfg])*
                #[doc = concat!("`", stringify!($variant), "`")]
                $variant(Layered<$entry, P>),
            )*
        }

        /// A port of [`AnyPolicy`].
        pub enum AnyPort<P: Platform = Native> {
            $(
                $(#[$cfg])*
                #[doc = concat!("`", stringify!($variant), "`")]
                $variant(<Layered<$entry, P> as Policy>::Port),
            )*
        }

        impl<P: Platform> AnyPolicy<P> {
            /// Builds the policy of this name with these keys, and its ports.
            pub fn new(
                name: &str,
                keys: Keys<'_>,
                shape: &Shape,
            ) -> Result<Built<AnyPolicy<P>>, Error> {
                $(
                    $(#[$cfg])*
                    if name == <$entry>::NAME {
                        let (policy, ports) = build::<$entry, P>(keys, shape)?;
                        let ports = ports.into_iter().map(AnyPort::$variant).collect();
                        return Ok((AnyPolicy::$variant(policy), ports));
                    }
                )*
                Err(Error::NoPolicy(name.into()))
            }
        }

        /// Builds the policy of this name with these keys, and runs `with` on it.
        pub fn with<P: Platform, W: WithPolicy>(
            name: &str,
            keys: Keys<'_>,
            shape: &Shape,
            with: W,
        ) -> Result<W::Output, Error> {
            $(
                $(#[$cfg])*
                if name == <$entry>::NAME {
                    let (policy, ports) = build::<$entry, P>(keys, shape)?;
                    return Ok(with.run(policy, ports));
                }
            )*
            Err(Error::NoPolicy(name.into()))
        }

        /// The policy of this name.
        pub fn find(name: &str) -> Option<&'static Registered> {
            ALL.iter().find(|policy| policy.name == name)
        }

        /// Evaluates an expression with the policy or port inside.
        macro_rules! forward {
            ($d of:ident in $d self:expr => $d call:expr) => {
                match $d self {
                    $($(#[$cfg])* Self::$variant($d of) => $d call,)*
                }
            };
        }

        impl<P: Platform> Policy for AnyPolicy<P> {
            type Port = AnyPort<P>;
            $crate::policy_methods!(to_the_policy);
        }

        impl<P: Platform> Limits for AnyPolicy<P> {
            $crate::limit_methods!(to_the_policy);
        }

        /// Its `submit` gives [`Submitted::Issue`] if the policy's submit is dispatch. The type
        /// does not show which policy is inside, so the caller has to call `next` in any case.
        impl<P: Platform> Port for AnyPort<P> {
            $crate::port_methods!(to_the_port);
        }
    };
}

/// The methods of a policy of [`policies`].
#[doc(hidden)]
#[macro_export]
macro_rules! to_the_policy {
    ($(fn $name:ident($($arg:ident: $of:ty),*) -> $gives:ty;)*) => {
        $(
            fn $name(&self, $($arg: $of),*) -> $gives {
                forward!(policy in self => policy.$name($($arg),*))
            }
        )*
    };
}

/// The verbs of a port of [`policies`].
#[doc(hidden)]
#[macro_export]
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

policies! { $
    None: none::Entry,
    Sfqd: Alone<SfqdScheduler>,
    Mqfq: mqfq::Entry,
    MqfqSerial: mqfq::Entry<true>,
    D2fq: d2fq::Entry,
    KyberFair: kyber_fair::Entry,
}

/// An action on a policy once it is built; a trait, because each policy is a type of its own.
pub trait WithPolicy {
    /// The result of the action.
    type Output;
    /// Runs the action.
    fn run<L: Limits>(self, policy: L, ports: Vec<L::Port>) -> Self::Output
    where
        L::Port: 'static;
}

/// The reason why a policy was not built.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No policy has this name.
    #[error("there is no policy {0}")]
    NoPolicy(String),
    /// The policy does not take this key.
    #[error("{policy} takes no {key}")]
    NoKey {
        /// The policy.
        policy: &'static str,
        /// The key.
        key: String,
    },
    /// A value, or the combination of all values, is not valid.
    #[error(transparent)]
    Config(#[from] ConfigError),
}

/// A policy of the registry, whatever its type.
#[derive(Clone, Copy, Debug)]
pub struct Registered {
    /// Its name.
    pub name: &'static str,
    /// Its promises.
    pub promises: Promises,
    /// Whether submit is dispatch ([`Port::IS_DIRECT`]).
    pub is_direct: bool,
    knobs: fn(Keys<'_>, &Shape) -> Result<Values, Error>,
}

impl PartialEq for Registered {
    fn eq(&self, other: &Registered) -> bool {
        self.name == other.name
    }
}

impl Eq for Registered {}

impl Registered {
    /// The policy of an entry.
    pub const fn of<E: Entry>() -> Registered {
        Registered {
            name: E::NAME,
            promises: E::PROMISES,
            is_direct: <<E::Policy<Native> as Policy>::Port as Port>::IS_DIRECT,
            knobs: |keys, shape| {
                let mut list = list(&mut configure::<E>(keys, shape)?);
                list.retain(|(knob, _)| !E::WITHOUT.contains(&knob.key));
                // A key that is taken and changes nothing (`least-cost` of `fiops`) has no field to
                // keep it.
                for (knob, value) in &mut list {
                    *value = crate::entry::said(keys, knob.key).or(*value);
                }
                Ok(list)
            },
        }
    }

    /// Its knobs, and their values with these keys; `None` where the policy finds a value by
    /// itself.
    pub fn configured(&self, keys: Keys<'_>, shape: &Shape) -> Result<Values, Error> {
        (self.knobs)(keys, shape)
    }

    /// Its knobs.
    pub fn knobs(&self) -> Vec<Knob> {
        let usual = self.configured(&[], &Shape::new(Topology::flat(1), 1, 1));
        usual.unwrap_or_default().into_iter().map(|(knob, _)| knob).collect()
    }
}

/// The configuration with these keys. It is not inlined, because its knobs take 4 KiB of stack and
/// the policy's construction takes as much again, while a kernel's stack has 16 KiB.
#[inline(never)]
fn configure<E: Entry>(keys: Keys<'_>, shape: &Shape) -> Result<E::Config, Error> {
    let mut config = E::config(shape, keys)?;
    for &(key, value) in keys {
        let mut done = Err(Error::NoKey { policy: E::NAME, key: key.to_string() });
        each(&mut config, |knob: &Knob, field: &mut dyn Field| {
            if knob.key == key && !E::WITHOUT.contains(&key) {
                done = knob.check(value).map(|()| field.set(value)).map_err(Error::from);
            }
        });
        done?;
    }
    Ok(config)
}

/// The type that is built for an entry: its policy with its stages around it.
pub type Layered<E, P> = <E as Entry>::Policy<P>;

/// Builds the policy of this entry with these keys, its ports, and around it the stages of its
/// entry and those for [groups, reservations and caps](crate::limits). The result has a type of its
/// own, so that the loop of an embedder who chooses the policy at compile time is compiled for it.
///
/// All policies are built by this one call, so a new knob of a policy breaks no caller.
///
/// **Memory.** All of it is allocated here, and none when flows are added. If there is not enough
/// for the policy and its stages, the error is [`ConfigError::Memory`].
///
/// ```
/// use fairq_core::registry::{self, Shape};
/// use fairq_core::{Native, Policy, Topology};
///
/// let shape = Shape::new(Topology::flat(2), 16, 64);
/// let keys = [("slots", 32)];
/// let (policy, ports) = registry::build::<registry::mqfq::Entry, Native>(&keys, &shape)?;
/// assert_eq!((ports.len(), policy.stats().slots), (2, Some(32)));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn build<E: Entry, P: Platform>(
    keys: Keys<'_>,
    shape: &Shape,
) -> Result<Built<Layered<E, P>>, Error> {
    within::<E, P>(keys, shape, true)
}

/// Builds the policy like [`build`], but without groups, reservations and caps, for embedders that
/// use none of them: the policy refuses them, and needs less memory.
pub fn bare<E: Entry, P: Platform>(
    keys: Keys<'_>,
    shape: &Shape,
) -> Result<Built<Layered<E, P>>, Error> {
    within::<E, P>(keys, shape, false)
}

#[inline(never)]
fn within<E: Entry, P: Platform>(
    keys: Keys<'_>,
    shape: &Shape,
    has_limits: bool,
) -> Result<Built<Layered<E, P>>, Error> {
    let config = configure::<E>(keys, shape)?;
    Ok(granted(|| E::build(config, has_limits))?)
}

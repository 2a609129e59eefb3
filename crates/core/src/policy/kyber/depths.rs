//! The tokens of the domains, shared by all ports, and the ports that wait.
//!
//! **Model.** A domain's word holds its depth and how many tokens of it are in use; a request takes
//! one before it goes to the device and gives it back when it completes. The depth may change at
//! any time: if it shrinks below what is in use, no more are taken until enough have come back.
//!
//! **Hand-over.** A port that completes a request is the first to come for another token: it would
//! take back the one that it gave, before the port that it woke for it has even begun to run, and
//! with few tokens the others would wait for seconds. So a token that comes back while ports wait
//! is not free for a moment: it is *granted* to the next waiting port after the one that had it,
//! round robin, counted as in use all the while. To wake another port costs more than the request,
//! though, and the token lies idle until then; so a port that itself waits keeps what comes back to
//! it, [`KEEPS`] times in a row at most. *Bounded wait*: as long as a port waits, each token that a
//! port does not keep is granted either to it or to a port nearer to it in the round. What a port
//! was granted and does not want any more, it gives back when it stops ([`Depths::give_back`]).
//!
//! **Bounds of loops.** A swap of a domain's word fails when another port has taken a token or
//! given one back: each failure is another verb's progress. A grant that fails was given to the
//! port by another, which cleared its bit: no call grants more tokens, or finds more bits, than
//! there are ports that went to wait in the meantime and before. A port gives back at most what it
//! was granted, which is bounded by the depth.
//!
//! **No wake-up is lost.** A port that finds no token sets its bit in the domain's `waiting` word
//! and *then* tries again; a port that makes a token free (or raises the depth) *then* reads
//! `waiting`. In the total order of these accesses one sees the other. A thread that clears a
//! port's bit has a token in hand for it, grants that, and wakes it.

use alloc::boxed::Box;

use crossbeam_utils::CachePadded;

use super::domain::{DOMAINS, Domain};
use crate::contract::platform::{AtomicWord, Ordering, Platform};
use crate::contract::port_set::{PortBits, PortId, PortSet};
use crate::structures::allocation::boxed;

/// The tokens of all domains.
pub(super) struct Depths<P: Platform> {
    domains: [CachePadded<Tokens<P>>; DOMAINS],
    /// What each port was granted, by domain: it alone takes from it.
    grants: Box<[CachePadded<[P::U64; DOMAINS]>]>,
}

struct Tokens<P: Platform> {
    /// Depth (upper half) and tokens in use (lower half).
    word: P::U64,
    /// A bit for each port that found none.
    waiting: PortBits<P>,
}

/// How often in a row a port may keep a token that comes back to it.
pub(super) const KEEPS: u32 = 7;

const IN_USE: u64 = u32::MAX as u64;
const LAST: PortId = PortId(u8::MAX);

#[inline]
fn has_room(word: u64) -> bool {
    word & IN_USE < word >> 32
}

impl<P: Platform> Depths<P> {
    /// Tokens as many as `depths` says, none in use.
    pub(super) fn new(ports: usize, depths: [u32; DOMAINS]) -> Self {
        let tokens = |depth| Tokens {
            word: P::U64::new(u64::from(depth) << 32),
            waiting: PortBits::new(ports),
        };
        let none = || CachePadded::new(core::array::from_fn(|_| P::U64::new(0)));
        let grants = boxed(ports, |_| none());
        Depths { domains: depths.map(|depth| CachePadded::new(tokens(depth))), grants }
    }

    #[inline]
    fn tokens(&self, domain: Domain) -> &Tokens<P> {
        let [read, write, discard, other] = &self.domains;
        match domain {
            Domain::Read => read,
            Domain::Write => write,
            Domain::Discard => discard,
            Domain::Other => other,
        }
    }

    #[inline]
    fn grants(&self, domain: Domain, port: PortId) -> Option<&P::U64> {
        self.grants.get(usize::from(port.0))?.get(domain as usize)
    }

    /// Takes a token that the port was granted, or a free one, if there is one.
    #[inline]
    pub(super) fn acquire(&self, domain: Domain, port: PortId) -> bool {
        self.take_grant(domain, port) || self.take_free(domain)
    }

    #[inline]
    fn take_grant(&self, domain: Domain, port: PortId) -> bool {
        let Some(grants) = self.grants(domain, port) else { return false };
        let granted = grants.load(Ordering::SeqCst) != 0;
        if granted {
            // Only this port takes from its grants: what was there still is.
            grants.fetch_sub(1, Ordering::SeqCst);
        }
        granted
    }

    #[inline]
    fn take_free(&self, domain: Domain) -> bool {
        let word = &self.tokens(domain).word;
        let mut old = word.load(Ordering::SeqCst);
        while has_room(old) {
            match word.compare_exchange(old, old + 1, Ordering::SeqCst, Ordering::SeqCst) {
                Ok(_) => return true,
                Err(now) => old = now,
            }
        }
        false
    }

    /// Marks the port as waiting. The caller tries again afterwards.
    #[inline]
    pub(super) fn enlist(&self, domain: Domain, port: PortId) {
        let waiting = self.tokens(domain).waiting.set();
        // A load first, so that a port that waits anyway does not take the line from others.
        if !waiting.contains(port, Ordering::SeqCst) {
            waiting.insert(port, Ordering::SeqCst);
        }
        P::fence();
    }

    /// Gives a token back that `port` had, to itself first if it may keep it and waits; gives the
    /// port to wake.
    #[inline]
    pub(super) fn release(&self, domain: Domain, port: PortId, keeps: bool) -> PortSet {
        // After the port before it, it is the first in the round itself, if it waits.
        let before = PortId(port.0.wrapping_sub(1));
        self.pass(domain, if keeps { before } else { port }, None)
    }

    /// `port` stops, and wants tokens of the domains only for which it `has` requests: gives the
    /// ports to wake.
    #[inline]
    pub(super) fn give_back(&self, port: PortId, has: impl Fn(Domain) -> bool) -> PortSet {
        let mut wake = PortSet::EMPTY;
        for domain in Domain::ALL {
            // Not to itself again: its mark may still stand, and it wants none.
            while !has(domain) && self.take_grant(domain, port) {
                wake.extend(self.pass(domain, port, Some(port)));
            }
        }
        wake
    }

    /// Changes a domain's depth; gives the ports to wake.
    pub(super) fn resize(&self, domain: Domain, depth: u32) -> PortSet {
        let tokens = self.tokens(domain);
        let mut old = tokens.word.load(Ordering::SeqCst);
        loop {
            let new = u64::from(depth) << 32 | old & IN_USE;
            match tokens.word.compare_exchange(old, new, Ordering::SeqCst, Ordering::SeqCst) {
                Ok(_) if u64::from(depth) <= old >> 32 => return PortSet::EMPTY,
                Ok(_) => break,
                Err(now) => old = now,
            }
        }
        P::fence();
        let mut wake = PortSet::EMPTY;
        loop {
            // From the first port on.
            let woken = self.offer(domain, LAST, None);
            if woken.is_empty() {
                return wake;
            }
            wake.extend(woken);
        }
    }

    /// Depth and tokens in use.
    pub(super) fn state(&self, domain: Domain) -> (u64, u64) {
        let word = self.tokens(domain).word.load(Ordering::Relaxed);
        (word >> 32, word & IN_USE)
    }

    /// Passes on a token to the next port after `port`, but not to the one `except`, or frees it.
    #[inline]
    fn pass(&self, domain: Domain, port: PortId, except: Option<PortId>) -> PortSet {
        let tokens = self.tokens(domain);
        // Beyond the depth there are too many.
        let word = tokens.word.load(Ordering::SeqCst);
        if word & IN_USE <= word >> 32 {
            while let Some(chosen) = self.waiting_after(domain, port, except) {
                if self.grant(domain, chosen) {
                    return PortSet::only(chosen);
                }
            }
        }
        tokens.word.fetch_sub(1, Ordering::SeqCst);
        P::fence();
        self.offer(domain, port, except)
    }

    /// Grants a free token to a waiting port, if there are both.
    #[inline]
    fn offer(&self, domain: Domain, port: PortId, except: Option<PortId>) -> PortSet {
        while let Some(chosen) = self.waiting_after(domain, port, except) {
            if !self.take_free(domain) {
                break;
            }
            if self.grant(domain, chosen) {
                return PortSet::only(chosen);
            }
            // Another port has granted it one meanwhile: this token is for the next.
            self.tokens(domain).word.fetch_sub(1, Ordering::SeqCst);
            P::fence();
        }
        PortSet::EMPTY
    }

    /// The first port that waits after `port`, in cyclic order, but for `except`.
    #[inline]
    fn waiting_after(
        &self,
        domain: Domain,
        port: PortId,
        except: Option<PortId>,
    ) -> Option<PortId> {
        let mut waiting = self.tokens(domain).waiting.set().load(Ordering::SeqCst);
        if let Some(port) = except {
            waiting.remove(port);
        }
        waiting.after(port)
    }

    /// Grants a token, which the caller has in hand, to a port that waits; `false`: it does not any
    /// more.
    #[inline]
    fn grant(&self, domain: Domain, port: PortId) -> bool {
        let waits = self.tokens(domain).waiting.set().remove(port, Ordering::SeqCst);
        if waits && let Some(grants) = self.grants(domain, port) {
            grants.fetch_add(1, Ordering::SeqCst);
        }
        waits
    }
}

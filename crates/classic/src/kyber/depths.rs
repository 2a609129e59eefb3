//! The tokens of the domains, shared by all ports, and the ports that wait.
//!
//! **Model.** A domain's word holds its depth and how many tokens of it are in use; a request takes
//! one before it goes to the device and gives it back when it completes. The depth may change at
//! any time: if it falls below the number in use, none is taken until enough have been returned.
//!
//! **Hand-over.** A port that completes a request is also the first to take another token: it would
//! take back the token that it returned before the port that it woke has even begun to run, and
//! with few tokens the other ports would wait for seconds. So a token that is returned while ports
//! wait is never free: it is *granted* to the next waiting port after the one that had it, round
//! robin, and counts as in use all the while. But waking another port costs more than the request,
//! and the token lies idle until that port runs; so a port that itself waits keeps its token, at
//! most [`KEEPS`] times in a row. *Bounded wait*: as long as a port waits, each token that a port
//! does not keep is granted either to it or to a port nearer in the round. When a port stops, it
//! returns the granted tokens that it no longer needs ([`Depths::give_back`]).
//!
//! **Bounds of loops.** A swap of a domain's word fails when another port has taken or returned a
//! token: each failure is another verb's progress. A grant fails if another thread has granted the
//! port a token and cleared its bit: a call grants at most as many tokens, and finds at most as
//! many bits, as there are ports that began to wait before or during the call. A port returns at
//! most the tokens that it was granted, which the depth bounds.
//!
//! **No wake-up is lost.** A port that finds no token sets its bit in the domain's `waiting` word
//! and *then* tries again; a port that makes a token free (or raises the depth) *then* reads
//! `waiting`. In the total order of these accesses one sees the other. A thread that clears a
//! port's bit has a token in hand for the port, grants it, and wakes the port.

use alloc::boxed::Box;

use crossbeam_utils::CachePadded;

use fairq_core::contract::bounds::boxed;
use fairq_core::contract::platform::{AtomicWord, Ordering, Platform};
use fairq_core::contract::port_set::{PortBits, PortId, PortSet};
use fairq_core::kyber_fair::domain::{DOMAINS, Domain};

/// The tokens of all domains.
pub(super) struct Depths<P: Platform> {
    domains: [CachePadded<Tokens<P>>; DOMAINS],
    /// Tokens granted to each port, by domain: only that port takes from them.
    grants: Box<[CachePadded<[P::U64; DOMAINS]>]>,
}

struct Tokens<P: Platform> {
    /// Depth (upper half) and tokens in use (lower half).
    word: P::U64,
    /// A bit for each port that found no token.
    waiting: PortBits<P>,
}

/// The most times in a row that a port may keep a token that it returns.
pub(super) const KEEPS: u32 = 7;

const IN_USE: u64 = u32::MAX as u64;
const LAST: PortId = PortId(u8::MAX);

#[inline]
fn has_room(word: u64) -> bool {
    word & IN_USE < word >> 32
}

impl<P: Platform> Depths<P> {
    /// With `depths` tokens by domain, none in use.
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
            // Only this port takes from its grants: the grant that was read is still there.
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
        // The load comes first, so that a port that is already marked does not take the cache line
        // from others.
        if !waiting.contains(port, Ordering::SeqCst) {
            waiting.insert(port, Ordering::SeqCst);
        }
        P::fence();
    }

    /// Returns a token of `port`, first to the port itself if it waits and `keeps` allows it; gives
    /// the port to wake.
    #[inline]
    pub(super) fn release(&self, domain: Domain, port: PortId, keeps: bool) -> PortSet {
        // `pass` tries the ports after its argument, in cyclic order. So with the port before this
        // one as its argument it tries this port first.
        let before = PortId(port.0.wrapping_sub(1));
        self.pass(domain, if keeps { before } else { port }, None)
    }

    /// Returns the granted tokens of `port`, which stops, except those of domains of which it `has`
    /// requests; gives the ports to wake.
    #[inline]
    pub(super) fn give_back(&self, port: PortId, has: impl Fn(Domain) -> bool) -> PortSet {
        let mut wake = PortSet::EMPTY;
        for domain in Domain::ALL {
            // The port itself is left out, because its bit may still be set, and it needs no token.
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
            // The round begins with the first port.
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

    /// Grants a returned token to the next waiting port after `port`, other than `except`, or frees
    /// it.
    #[inline]
    fn pass(&self, domain: Domain, port: PortId, except: Option<PortId>) -> PortSet {
        let tokens = self.tokens(domain);
        // While more tokens are in use than the depth, a returned one is freed.
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
            // Another port has granted `chosen` a token meanwhile: this one is for the next port.
            self.tokens(domain).word.fetch_sub(1, Ordering::SeqCst);
            P::fence();
        }
        PortSet::EMPTY
    }

    /// The first waiting port after `port`, in cyclic order, other than `except`.
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

    /// Grants a token, which the caller has in hand, to a waiting port; `false`: it no longer
    /// waits.
    #[inline]
    fn grant(&self, domain: Domain, port: PortId) -> bool {
        let waits = self.tokens(domain).waiting.set().remove(port, Ordering::SeqCst);
        if waits && let Some(grants) = self.grants(domain, port) {
            grants.fetch_add(1, Ordering::SeqCst);
        }
        waits
    }
}

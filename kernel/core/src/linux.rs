//! The kernel's services for the crate: memory, locks, and a panic.

use core::alloc::{GlobalAlloc, Layout};
use core::cell::UnsafeCell;
use core::fmt::Write;
use core::panic::PanicInfo;
use core::ptr;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use fairq_core::Platform;
use fairq_core::platform::Lock;

unsafe extern "C" {
    /// Initializes a lock. `kind` is the same for all locks around values of one type.
    fn fairq_lock_init(lock: *mut LockWords, kind: u64);
    /// Takes a lock and switches interrupts off; returns the flags that [`fairq_unlock`] restores.
    fn fairq_lock(lock: *mut LockWords) -> usize;
    fn fairq_unlock(lock: *mut LockWords, flags: usize);
    /// Writes the text to the kernel's log and calls the kernel's `BUG()`. It does not return.
    fn fairq_panicked(text: *const u8, length: usize) -> !;
}

/// The kernel as a platform for policies.
pub(crate) struct Linux;

impl Platform for Linux {
    type U64 = AtomicU64;
    type Mutex<T: Send + 'static> = SpinLock<T>;

    fn relax() {
        core::hint::spin_loop();
    }
}

/// Space for a spin lock of any kernel; `FAIRQ_LOCK_WORDS` in `module/core.h`.
type LockWords = [u64; 12];

/// A spin lock of the kernel; interrupts are off while it is held.
pub(crate) struct SpinLock<T> {
    lock: UnsafeCell<LockWords>,
    value: UnsafeCell<T>,
}

// SAFETY: the value is accessed only under the lock.
unsafe impl<T: Send> Sync for SpinLock<T> {}

/// The kind of a lock: a hash of its value's type.
fn kind<T>() -> u64 {
    let name = core::any::type_name::<T>().bytes();
    name.fold(0xcbf2_9ce4_8422_2325, |sum, byte| {
        (sum ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

impl<T: Send + 'static> Lock<T> for SpinLock<T> {
    // Inlined, so that the value is not moved through the stack: it may be large.
    #[inline]
    fn new(value: T) -> Self {
        let mut lock = [0; 12];
        // SAFETY: the array is large enough for a lock. A lock has no pointer to itself, so it can
        // be moved until it is taken for the first time.
        unsafe { fairq_lock_init(&raw mut lock, kind::<T>()) };
        SpinLock { lock: UnsafeCell::new(lock), value: UnsafeCell::new(value) }
    }

    #[inline]
    fn with<R>(&self, f: impl FnOnce(&mut T) -> R) -> R {
        // SAFETY: `new` has made the lock.
        let flags = unsafe { fairq_lock(self.lock.get()) };
        // SAFETY: while the lock is held nothing else has a reference to the value.
        let result = f(unsafe { &mut *self.value.get() });
        // SAFETY: the lock is held, by this call.
        unsafe { fairq_unlock(self.lock.get(), flags) };
        result
    }
}

/// Memory that C lends for some calls. It is allocated from the front; only the last piece can be
/// freed, or grow. The pieces of a scheduler are never freed one by one, because C frees its whole
/// memory. Allocations fail if no memory is lent, or if it is used up.
///
/// C lends to one call at a time, so the words need no ordering.
struct Lent {
    begin: AtomicUsize,
    next: AtomicUsize,
    end: AtomicUsize,
    /// End of the used part.
    most: AtomicUsize,
}

impl Lent {
    fn set(&self, next: usize) {
        self.next.store(next, Ordering::Relaxed);
        self.most.fetch_max(next, Ordering::Relaxed);
    }

    /// Whether the piece is the last one.
    fn is_last(&self, piece: *mut u8, size: usize) -> bool {
        piece as usize + size == self.next.load(Ordering::Relaxed)
    }
}

// SAFETY: each piece begins behind the one before, at an address of its alignment, and ends within
// the lent memory. Only the last piece is freed or changes its size, and callers do not use a freed
// piece.
unsafe impl GlobalAlloc for Lent {
    // Not inlined, so that the caller builds its value in this memory, and not on the stack.
    #[inline(never)]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let begin = self.next.load(Ordering::Relaxed).checked_next_multiple_of(layout.align());
        let after = begin.and_then(|begin| begin.checked_add(layout.size()));
        match (begin, after) {
            (Some(begin), Some(after)) if after <= self.end.load(Ordering::Relaxed) => {
                self.set(after);
                begin as *mut u8
            }
            _ => ptr::null_mut(),
        }
    }

    unsafe fn dealloc(&self, piece: *mut u8, layout: Layout) {
        if self.is_last(piece, layout.size()) {
            self.next.store(piece as usize, Ordering::Relaxed);
        }
    }

    unsafe fn realloc(&self, piece: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        let after = piece as usize + size;
        if self.is_last(piece, layout.size()) && after <= self.end.load(Ordering::Relaxed) {
            self.set(after);
            return piece;
        }
        // SAFETY: the caller's promise: the size is right for the alignment.
        let larger = unsafe { self.alloc(Layout::from_size_align_unchecked(size, layout.align())) };
        if !larger.is_null() {
            // SAFETY: both pieces exist and do not overlap.
            unsafe { ptr::copy_nonoverlapping(piece, larger, layout.size().min(size)) };
        }
        larger
    }
}

#[global_allocator]
static LENT: Lent = Lent {
    begin: AtomicUsize::new(0),
    next: AtomicUsize::new(0),
    end: AtomicUsize::new(0),
    most: AtomicUsize::new(0),
};

/// Lends this memory to the calls that follow; null and size 0 end a loan. Returns the used bytes
/// of the previous loan.
///
/// # Safety
/// `memory` has `size` bytes, and nothing else uses them while an engine in them is in use.
#[unsafe(no_mangle)]
unsafe extern "C" fn fairq_core_lend(memory: *mut u8, size: usize) -> usize {
    let used = LENT.most.load(Ordering::Relaxed) - LENT.begin.load(Ordering::Relaxed);
    for word in [&LENT.begin, &LENT.next, &LENT.most] {
        word.store(memory as usize, Ordering::Relaxed);
    }
    LENT.end.store(memory as usize + size, Ordering::Relaxed);
    used
}

/// A line of text; text beyond its capacity is left out.
struct Line {
    text: [u8; 160],
    length: usize,
}

impl Write for Line {
    fn write_str(&mut self, text: &str) -> core::fmt::Result {
        for &byte in text.as_bytes() {
            if let Some(place) = self.text.get_mut(self.length) {
                *place = byte;
                self.length += 1;
            }
        }
        Ok(())
    }
}

/// A bug in the construction of a scheduler may panic; verbs cannot (`checks/no-std`).
#[panic_handler]
fn panic(info: &PanicInfo<'_>) -> ! {
    let mut line = Line { text: [0; 160], length: 0 };
    let _ = write!(line, "{info}");
    // SAFETY: the text has this length and lives as long as the call.
    unsafe { fairq_panicked(line.text.as_ptr(), line.length) }
}

/// Division of 128-bit numbers, for which the kernel has no function. Ticks that search for D use
/// it. It works bit by bit, because it is seldom needed.
#[unsafe(no_mangle)]
extern "C" fn __udivti3(dividend: u128, divisor: u128) -> u128 {
    let (mut quotient, mut rest) = (0, 0u128);
    for bit in (0..128).rev() {
        let carries = rest >> 127 != 0;
        rest = rest << 1 | (dividend >> bit & 1);
        if carries || rest >= divisor {
            rest = rest.wrapping_sub(divisor);
            quotient |= 1 << bit;
        }
    }
    quotient
}

//! What the crate takes from the kernel: memory, locks, and the end of it all.

use core::alloc::{GlobalAlloc, Layout};
use core::cell::UnsafeCell;
use core::fmt::Write;
use core::panic::PanicInfo;
use core::ptr;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use fairq_core::Platform;
use fairq_core::platform::Lock;

unsafe extern "C" {
    /// Makes a lock of this kind, which is a number of its own for all that guard the same.
    fn fairq_lock_init(lock: *mut LockWords, kind: u64);
    /// Takes a lock and switches interrupts off; gives what [`fairq_unlock`] switches on again.
    fn fairq_lock(lock: *mut LockWords) -> usize;
    fn fairq_unlock(lock: *mut LockWords, flags: usize);
    /// Writes this to the kernel's log and stops, as the kernel does for faults of its own.
    fn fairq_panicked(text: *const u8, length: usize) -> !;
}

/// The kernel, as a machine for policies.
pub(crate) struct Linux;

impl Platform for Linux {
    type U64 = AtomicU64;
    type Mutex<T: Send + 'static> = SpinLock<T>;

    fn relax() {
        core::hint::spin_loop();
    }
}

/// Room for a spin lock of any kernel; `FAIRQ_LOCK_WORDS` in `module/core.h`.
type LockWords = [u64; 12];

/// A spin lock of the kernel's, which is held with interrupts off.
pub(crate) struct SpinLock<T> {
    lock: UnsafeCell<LockWords>,
    value: UnsafeCell<T>,
}

// SAFETY: the value is reached under the lock.
unsafe impl<T: Send> Sync for SpinLock<T> {}

/// Which locks are of one kind: those around values of one type.
fn kind<T>() -> u64 {
    let name = core::any::type_name::<T>().bytes();
    name.fold(0xcbf2_9ce4_8422_2325, |sum, byte| {
        (sum ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

impl<T: Send + 'static> Lock<T> for SpinLock<T> {
    // The value is not moved more often than without a lock: it may be large, and the stack is not.
    #[inline]
    fn new(value: T) -> Self {
        let mut lock = [0; 12];
        // SAFETY: the room is large enough for a lock. It has no pointer to itself, so it can be
        // moved until it is taken for the first time.
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

/// Memory that C lends for some calls. It is handed out from the front; the last piece can be given
/// back, or become larger. Pieces of a scheduler that is built stay: its memory is freed as a whole
/// by C. Without any, and when it is used up, there is none.
///
/// C lends to one call at a time, so that the words need no order.
struct Lent {
    begin: AtomicUsize,
    next: AtomicUsize,
    end: AtomicUsize,
    /// How far it has been used.
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
// what was lent. Only the last one is given back or changes its size, and one that has been given
// back is not used by its caller any longer.
unsafe impl GlobalAlloc for Lent {
    // A call of its own: what its caller makes is then made in this memory, and not on the stack.
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
            // SAFETY: both are there, and different.
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

/// Lends this memory to the calls that follow. Without any, and size 0, none is lent. Gives how
/// much has been used of what was lent before.
///
/// # Safety
/// There are so many bytes, and nothing else uses them as long as what is built there is used.
#[unsafe(no_mangle)]
unsafe extern "C" fn fairq_core_lend(memory: *mut u8, size: usize) -> usize {
    let used = LENT.most.load(Ordering::Relaxed) - LENT.begin.load(Ordering::Relaxed);
    for word in [&LENT.begin, &LENT.next, &LENT.most] {
        word.store(memory as usize, Ordering::Relaxed);
    }
    LENT.end.store(memory as usize + size, Ordering::Relaxed);
    used
}

/// A line of text; what does not fit is left out.
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

/// Building a scheduler may panic if it has a fault; verbs cannot (`checks/no-std`).
#[panic_handler]
fn panic(info: &PanicInfo<'_>) -> ! {
    let mut line = Line { text: [0; 160], length: 0 };
    let _ = write!(line, "{info}");
    // SAFETY: the text is as long as it is said to be, and lives as long as the call.
    unsafe { fairq_panicked(line.text.as_ptr(), line.length) }
}

/// Division of 128-bit numbers, for which the kernel has no function: what searches for D when
/// they are ticked. Bit by bit, since it is seldom needed.
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

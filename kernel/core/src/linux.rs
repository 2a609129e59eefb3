//! What the crate takes from the kernel: memory, and the end of it all.

use core::alloc::{GlobalAlloc, Layout};
use core::fmt::Write;
use core::panic::PanicInfo;

unsafe extern "C" {
    /// Memory of so many bytes at such an alignment; may sleep, and does not fail.
    fn fairq_memory_take(size: usize, align: usize) -> *mut u8;
    /// Gives it back.
    fn fairq_memory_give(memory: *mut u8, size: usize);
    /// Says so in the kernel's log and stops, as the kernel does for faults of its own.
    fn fairq_panicked(text: *const u8, length: usize) -> !;
}

/// The kernel's memory. It is taken while a scheduler is built, and never in a verb.
struct Kernel;

// SAFETY: `fairq_memory_take` gives memory of its own to each call, as large and as aligned as it
// is asked for, and it stays until it is given back.
unsafe impl GlobalAlloc for Kernel {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: any size and power of two may be asked for.
        unsafe { fairq_memory_take(layout.size(), layout.align()) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise: it came from `alloc` and nothing uses it.
        unsafe { fairq_memory_give(memory, layout.size()) }
    }
}

#[global_allocator]
static MEMORY: Kernel = Kernel;

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

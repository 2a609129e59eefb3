//! The parts of a program without an operating system library: an entry point, two system calls,
//! and the memory functions that the compiler calls. x86-64 Linux; for aarch64, where programs are
//! only linked and the compiler has the memory functions, only an entry point.

#[cfg(target_arch = "x86_64")]
use core::arch::asm;
use core::arch::global_asm;

#[cfg(target_arch = "aarch64")]
global_asm!(".globl _start", "_start:", "bl {main}", "brk 1", main = sym crate::main);

/// Never called: the program is not run.
#[cfg(target_arch = "aarch64")]
pub(crate) fn exit(code: i32) -> ! {
    loop {
        core::hint::black_box(code);
    }
}

// The stack is aligned as a function expects it, and `main` never returns.
#[cfg(target_arch = "x86_64")]
global_asm!(".globl \
 _start", "_start:", "xor ebp, ebp", "and rsp, -16", "call {main}", "ud2", main = sym crate::main);

/// Ends the process.
#[cfg(target_arch = "x86_64")]
pub(crate) fn exit(code: i32) -> ! {
    // SAFETY: exit_group (231) takes a number and does not return.
    unsafe { asm!("syscall", in("rax") 231, in("rdi") code, options(noreturn, nostack)) }
}

/// Writes to standard output; bytes that cannot be written are lost.
#[cfg(target_arch = "x86_64")]
#[allow(dead_code)]
pub(crate) fn print(text: &str) {
    // SAFETY: write (1) reads `len` bytes from a live string and writes no memory of ours; the
    // system call overwrites rcx and r11.
    unsafe {
        asm!("syscall", inlateout("rax") 1usize => _, in("rdi") 1, in("rsi") text.as_ptr(), in("rdx") text.len(),
            lateout("rcx") _, lateout("r11") _, options(nostack, readonly))
    }
}

/// As in C.
///
/// # Safety
/// `to` and `from` are valid for `count` bytes and do not overlap.
#[cfg(target_arch = "x86_64")]
#[unsafe(no_mangle)]
unsafe extern "C" fn memcpy(to: *mut u8, from: *const u8, count: usize) -> *mut u8 {
    // SAFETY: the caller's promise is what `rep movsb` needs; the direction flag is clear by the
    // calling convention.
    unsafe {
        asm!("rep movsb", inout("rcx") count => _, inout("rdi") to => _, inout("rsi") from => _,
            options(nostack, preserves_flags))
    }
    to
}

/// As in C.
///
/// # Safety
/// `to` and `from` are valid for `count` bytes.
#[cfg(target_arch = "x86_64")]
#[unsafe(no_mangle)]
unsafe extern "C" fn memmove(to: *mut u8, from: *const u8, count: usize) -> *mut u8 {
    if (to as usize).wrapping_sub(from as usize) >= count {
        // SAFETY: `to` is before `from` or beyond its end, so copying upwards reads each byte
        // before it is overwritten.
        return unsafe { memcpy(to, from, count) };
    }
    // SAFETY: backwards, from the last byte on; `count` is not 0 here, so both last bytes exist.
    // The flag is restored.
    unsafe {
        asm!("std", "rep \
         movsb", "cld", inout("rcx") count => _, inout("rdi") to.add(count - 1) => _,
            inout("rsi") from.add(count - 1) => _, options(nostack))
    }
    to
}

/// As in C.
///
/// # Safety
/// `to` is valid for `count` bytes.
#[cfg(target_arch = "x86_64")]
#[unsafe(no_mangle)]
unsafe extern "C" fn memset(to: *mut u8, byte: i32, count: usize) -> *mut u8 {
    // SAFETY: the caller's promise is what `rep stosb` needs.
    unsafe {
        asm!("rep stosb", inout("rcx") count => _, inout("rdi") to => _, in("al") byte as u8,
            options(nostack, preserves_flags))
    }
    to
}

/// As in C.
///
/// # Safety
/// `a` and `b` are valid for `count` bytes.
#[cfg(target_arch = "x86_64")]
#[unsafe(no_mangle)]
unsafe extern "C" fn memcmp(a: *const u8, b: *const u8, count: usize) -> i32 {
    for at in 0..count {
        // SAFETY: `at` is below `count`.
        let (a, b) = unsafe { (a.add(at).read_volatile(), b.add(at).read_volatile()) };
        if a != b {
            return i32::from(a) - i32::from(b);
        }
    }
    0
}

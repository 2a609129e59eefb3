/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The thunks for returns and indirect calls of the schedulers, as in a kernel that needs no
 * mitigation.
 */
asm(".globl __x86_return_thunk\n__x86_return_thunk: ret\n"
#define THUNK(r) ".globl __x86_indirect_thunk_" #r "\n__x86_indirect_thunk_" #r ": jmp *%" #r "\n"
    THUNK(rax) THUNK(rbx) THUNK(rcx) THUNK(rdx) THUNK(rsi) THUNK(rdi) THUNK(rbp) THUNK(r8) THUNK(r9) THUNK(r10)
    THUNK(r11) THUNK(r12) THUNK(r13) THUNK(r14) THUNK(r15));

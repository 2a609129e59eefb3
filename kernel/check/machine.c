// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * A model of a machine with the locks, timers, work items and memory of Linux. Its runners (tasks,
 * threads and interrupts) take steps in random order.
 *
 * - A timer's function, and a work item, runs on at most one CPU at a time, while other CPUs run.
 *   The CPU that cancels it waits until it has ended.
 * - An access to freed memory fails. Memory that is freed must not contain a timer or a work item
 *   that is pending or runs.
 * - A runner takes locks in the order of ../module/fairq.h, and none that it already holds.
 */
#include <signal.h>
#include <stdarg.h>
#include <sys/mman.h>
#include <unistd.h>

#include "machine.h"

#define MOST_RUNNERS 40
#define STACK (64 << 10)
#define MEMORY (1ULL << 30)

char name[FAIRQ_NAME];
u64 interleaving, now;
struct request_queue queue;
struct hrtimer *timers;

/*
 * A task that holds no lock is preempted once in PREEMPTED steps on average, for fewer than AWAY
 * steps of the machine.
 */
#define PREEMPTED 2000
#define AWAY 4000

static struct runner runners[MOST_RUNNERS];
static u32 runner_count;
static struct runner *running;
static void *home;
static u64 seed, steps;
static struct work_struct *works;
static unsigned char stacks[MOST_RUNNERS][STACK] __attribute__((aligned(64)));

/*
 * Each piece of memory begins at a page boundary, and an inaccessible page follows it. `bytes_of`
 * has the size of each piece, at the index of its first page.
 */
static unsigned char *memory;
static u64 memory_used;
static u32 bytes_of[MEMORY / PAGE_SIZE];

void __noreturn fail(const char *format, ...)
{
	va_list rest;

	va_start(rest, format);
	fprintf(stderr, "kernel/check: %s, interleaving %llu: ", name, (unsigned long long)interleaving);
	vfprintf(stderr, format, rest);
	fprintf(stderr, "\n");
	_exit(1);
}

static void faulted(int signal, siginfo_t *info, void *context)
{
	u64 at = (unsigned char *)info->si_addr - memory;

	(void)signal;
	(void)context;
	fail(at < MEMORY ? "memory is used that is not allocated" : "invalid access to memory");
}

u32 chance(u32 of)
{
	seed ^= seed << 13;
	seed ^= seed >> 7;
	seed ^= seed << 17;
	return (u32)(seed >> 33) % of;
}

/* Saves the registers and the stack pointer of this runner, and continues another one. */
void switch_to(void **stands, void *other);
asm(".globl switch_to\n"
    "switch_to:\n"
    "	push %rbx\n	push %rbp\n	push %r12\n	push %r13\n	push %r14\n	push %r15\n"
    "	mov %rsp, (%rdi)\n	mov %rsi, %rsp\n"
    "	pop %r15\n	pop %r14\n	pop %r13\n	pop %r12\n	pop %rbp\n	pop %rbx\n"
    "	ret\n");

/* Switches to the scheduler of runners, which may let another runner run. */
void step(void)
{
	struct runner *self = running;

	/* No runner runs while the model is set up. */
	if (!self)
		return;
	now += 50;
	if (!self->is_interrupt && !irqs_disabled() && !chance(PREEMPTED))
		self->away_until = steps + chance(AWAY);
	switch_to(&self->stands, home);
}

void idle(void)
{
	running->is_idle = true;
	step();
}

void wait_until(bool (*holds)(struct runner *self))
{
	struct runner *self = running;
	bool (*has)(struct runner *) = self->has_something;

	self->has_something = holds;
	while (!holds(self))
		idle();
	self->has_something = has;
}

static void enter(void)
{
	struct runner *self = running;

	self->function(self);
	self->is_done = true;
	switch_to(&self->stands, home);
	abort();
}

void add_runner(void (*function)(struct runner *), bool (*has)(struct runner *), u32 number, bool is_interrupt)
{
	struct runner *self = &runners[runner_count];
	void **top = (void **)(stacks[runner_count++] + STACK);

	*self = (struct runner) { .function = function, .has_something = has, .number = number, .is_interrupt = is_interrupt };
	/* An initial stack: switch_to() returns to enter(), which never returns to NULL. */
	*--top = NULL;
	*--top = (void *)enter;
	self->stands = top - 6;
}

bool run_one(void)
{
	struct runner *able[MOST_RUNNERS], *away = NULL;
	u32 i, count = 0;

	for (i = 0; i < runner_count; i++) {
		if (runners[i].is_done || (runners[i].is_idle && !runners[i].has_something(&runners[i])))
			continue;
		if (runners[i].away_until > steps)
			away = &runners[i];
		else
			able[count++] = &runners[i];
	}
	if (!count && !away)
		return false;
	steps++;
	running = count ? able[chance(count)] : away;
	running->is_idle = false;
	switch_to(&home, running->stands);
	running = NULL;
	return true;
}

/* Locks. */

void take(spinlock_t *lock)
{
	struct runner *self = running;
	bool is_queues = lock == &queue.queue_lock;

	step();
	if (!self)
		return;
	if (self->has_ports || (is_queues && self->has_queues))
		fail("takes the %s's lock out of order, or twice", is_queues ? "queue" : "port");
	while (lock->owner)
		step();
	lock->owner = self;
	*(is_queues ? &self->has_queues : &self->has_ports) = true;
}

void give(spinlock_t *lock)
{
	if (running) {
		lock->owner = NULL;
		*(lock == &queue.queue_lock ? &running->has_queues : &running->has_ports) = false;
	}
	step();
}

void take_within(spinlock_t *lock)
{
	while (lock->owner)
		step();
	lock->owner = running;
	step();
}

void take_raw(raw_spinlock_t *lock)
{
	step();
	while (lock->owner)
		step();
	lock->owner = running;
	if (running)
		running->raws++;
}

void give_raw(raw_spinlock_t *lock)
{
	lock->owner = NULL;
	if (running)
		running->raws--;
	step();
}

bool irqs_disabled(void) { return running && (running->has_queues || running->has_ports || running->raws); }
const struct task_struct *current_task(void) { return (const void *)running; }
bool in_interrupt(void) { return running && running->is_interrupt; }
/* A task also flushes its plug when it is about to sleep; it then does not count as running. */
bool is_awake(void) { return chance(4); }
u64 ktime_get_ns(void) { return now; }

/* Time. */

void hrtimer_setup(struct hrtimer *timer, enum hrtimer_restart (*function)(struct hrtimer *), int clock, int mode)
{
	(void)clock;
	(void)mode;
	*timer = (struct hrtimer) { .function = function, .next = timers };
	timers = timer;
}

void hrtimer_start(struct hrtimer *timer, ktime_t at, int mode)
{
	(void)mode;
	timer->expires_ns = at;
	timer->is_armed = true;
	step();
}

void hrtimer_cancel(struct hrtimer *timer)
{
	step();
	for (;;) {
		timer->is_armed = false;
		if (!timer->is_running)
			return;
		step();
	}
}

static struct hrtimer *timer_due(void)
{
	struct hrtimer *timer;

	for (timer = timers; timer; timer = timer->next)
		if (timer->is_armed && !timer->is_running && timer->expires_ns <= now)
			return timer;
	return NULL;
}

static bool clock_has(struct runner *self)
{
	(void)self;
	return timer_due();
}

static void clock_(struct runner *self)
{
	(void)self;
	for (;;) {
		struct hrtimer *timer = timer_due();

		if (timer) {
			timer->is_armed = false;
			timer->is_running = true;
			if (timer->function(timer) == HRTIMER_RESTART)
				timer->is_armed = true;
			timer->is_running = false;
		}
		idle();
	}
}

/* Work. */

void init_work(struct work_struct *work, void (*function)(struct work_struct *))
{
	*work = (struct work_struct) { .function = function, .next = works };
	works = work;
}

void kblockd_schedule_work(struct work_struct *work)
{
	step();
	if (!work->disabled)
		work->is_due = true;
}

static enum hrtimer_restart delayed(struct hrtimer *timer)
{
	kblockd_schedule_work(&container_of(timer, struct delayed_work, timer)->work);
	return HRTIMER_NORESTART;
}

void init_delayed_work(struct delayed_work *delayed_work, void (*function)(struct work_struct *))
{
	init_work(&delayed_work->work, function);
	hrtimer_setup(&delayed_work->timer, delayed, 0, 0);
}

void queue_delayed_work(const void *unused, struct delayed_work *work, u64 delay_ns)
{
	(void)unused;
	step();
	if (!work->work.disabled && !work->work.is_due && !work->timer.is_armed)
		hrtimer_start(&work->timer, (ktime_t)(now + delay_ns), 0);
}

void disable_work_sync(struct work_struct *work)
{
	step();
	work->disabled++;
	work->is_due = false;
	while (work->is_running)
		step();
}

void disable_delayed_work_sync(struct delayed_work *work)
{
	step();
	work->work.disabled++;
	hrtimer_cancel(&work->timer);
	disable_work_sync(&work->work);
	work->work.disabled--;
}

static struct work_struct *work_due(void)
{
	struct work_struct *work;

	for (work = works; work; work = work->next)
		if (work->is_due && !work->is_running)
			return work;
	return NULL;
}

static bool worker_has(struct runner *self)
{
	(void)self;
	return work_due();
}

static void worker(struct runner *self)
{
	(void)self;
	for (;;) {
		struct work_struct *work = work_due();

		if (work) {
			work->is_due = false;
			work->is_running = true;
			work->function(work);
			work->is_running = false;
		}
		idle();
	}
}

void add_kernel(void)
{
	add_runner(clock_, clock_has, 0, true);
	add_runner(clock_, clock_has, 1, true);
	add_runner(worker, worker_has, 0, false);
	add_runner(worker, worker_has, 1, false);
}

/* Memory. */

void *take_memory(size_t size)
{
	size_t bytes = (size + PAGE_SIZE - 1) & ~(PAGE_SIZE - 1);
	unsigned char *piece = memory + memory_used;

	if (running && running->is_short_of_memory && chance(2))
		return NULL;
	bytes_of[memory_used / PAGE_SIZE] = bytes;
	memory_used += bytes + PAGE_SIZE;
	if (memory_used > MEMORY || mprotect(piece, bytes, PROT_READ | PROT_WRITE))
		fail("the model has no more memory");
	return piece;
}

/* Removes the timers of a freed piece from the list; none of them may be armed or run. */
static void give_timers(const unsigned char *piece, size_t bytes)
{
	struct hrtimer **timer;

	for (timer = &timers; *timer;) {
		if ((size_t)((unsigned char *)*timer - piece) >= bytes) {
			timer = &(*timer)->next;
			continue;
		}
		if ((*timer)->is_armed || (*timer)->is_running)
			fail("memory is freed with a timer that %s", (*timer)->is_running ? "runs" : "is armed");
		*timer = (*timer)->next;
	}
}

static void give_works(const unsigned char *piece, size_t bytes)
{
	struct work_struct **work;

	for (work = &works; *work;) {
		if ((size_t)((unsigned char *)*work - piece) >= bytes) {
			work = &(*work)->next;
			continue;
		}
		if ((*work)->is_due || (*work)->is_running)
			fail("memory is freed with a work item that %s", (*work)->is_running ? "runs" : "is due");
		*work = (*work)->next;
	}
}

void give_memory(const void *given)
{
	unsigned char *piece = (unsigned char *)given;
	size_t bytes;

	if (!given)
		return;
	bytes = bytes_of[(piece - memory) / PAGE_SIZE];
	give_timers(piece, bytes);
	give_works(piece, bytes);
	if (mprotect(piece, bytes, PROT_NONE))
		fail("memory cannot be freed");
}

void start_machine(u64 number, u64 from)
{
	static unsigned char own_stack[16 << 10];
	struct sigaction action = { .sa_sigaction = faulted, .sa_flags = SA_SIGINFO | SA_ONSTACK };

	if (!memory) {
		memory = mmap(NULL, MEMORY, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
		sigaltstack(&(stack_t) { .ss_sp = own_stack, .ss_size = sizeof(own_stack) }, NULL);
		sigaction(SIGSEGV, &action, NULL);
	} else {
		mmap(memory, memory_used, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
	}
	memory_used = 0;
	timers = NULL;
	works = NULL;
	runner_count = 0;
	steps = 0;
	now = 1000000;
	interleaving = number;
	seed = from;
}

use super::*;

/// The rate that BFQ begins with: a start takes 3.75 s.
const RATE: u64 = 22_000;
const SECOND: u64 = 1000 * MS;

fn arrived(kernel: Kernel) -> Arrived {
    Arrived { kernel, rate: RATE, is_usual_weight: true, only_seeks: false, on_drive: 0 }
}

/// A queue that began at 10 s and sent `sectors`, all of which completed 5 ms later.
fn after_batch(kernel: Kernel, sectors: u64) -> Raising {
    let mut raising = Raising::NONE;
    assert!(raising.begins(10 * SECOND, arrived(kernel)));
    raising.served(sectors);
    raising.ends(10 * SECOND);
    raising.expired(10 * SECOND + 5 * MS, kernel, 0);
    raising
}

#[test]
fn a_new_queue_is_interactive_for_as_long_as_a_start_takes() {
    for kernel in Kernel::ALL {
        let mut raising = Raising::NONE;
        assert!(raising.begins(SECOND, arrived(kernel)));
        assert_eq!(raising.coefficient, 30);
        raising.dispatched(SECOND + 3750 * MS, kernel, RATE);
        assert!(raising.is_on(), "{kernel:?}");
        raising.dispatched(SECOND + 3751 * MS, kernel, RATE);
        assert!(!raising.is_on(), "{kernel:?}");
    }
}

#[test]
fn a_start_takes_longer_on_slow_drives_within_bounds() {
    let seconds = |kernel, rate| interactive_ns(kernel, rate) / SECOND;
    assert_eq!([100_000, 10_000, 1].map(|rate| seconds(Kernel::V7_2, rate)), [3, 8, 25]);
    assert_eq!([100_000, 10_000, 1].map(|rate| seconds(Kernel::V4_15, rate)), [3, 6, 13]);
}

#[test]
fn what_has_had_nothing_for_two_seconds_is_interactive_again() {
    for (pause_ns, is_raised) in [(1900 * MS, false), (2100 * MS, true)] {
        // More sectors than a soft real-time batch has.
        let mut raising = after_batch(Kernel::V7_2, 100_000);
        let now_ns = 10 * SECOND + 5 * MS + pause_ns;
        assert_eq!(raising.begins(now_ns, arrived(Kernel::V7_2)), is_raised);
        assert_eq!(raising.coefficient, if is_raised { 30 } else { 1 });
    }
}

#[test]
fn a_queue_that_still_has_something_on_the_drive_is_not_raised() {
    let mut raising = after_batch(Kernel::V7_2, 8);
    let arrived = Arrived { on_drive: 1, ..arrived(Kernel::V7_2) };
    assert!(!raising.begins(20 * SECOND, arrived));
}

#[test]
fn interactive_raising_ends_with_120_000_sectors_but_for_4_15() {
    for kernel in Kernel::ALL {
        let mut raising = Raising::NONE;
        raising.begins(SECOND, arrived(kernel));
        raising.served(120_000);
        raising.dispatched(SECOND + MS, kernel, RATE);
        assert!(raising.is_on());
        raising.served(1);
        raising.dispatched(SECOND + MS, kernel, RATE);
        assert_eq!(raising.is_on(), kernel == Kernel::V4_15, "{kernel:?}");
    }
}

#[test]
fn batches_below_7000_sectors_a_second_are_soft_real_time() {
    // At 7000 sectors a second 700 sectors take 100 ms.
    for (after_ms, is_raised) in [(99, false), (101, true)] {
        let mut raising = after_batch(Kernel::V7_2, 700);
        assert_eq!(raising.begins(10 * SECOND + after_ms * MS, arrived(Kernel::V7_2)), is_raised);
        assert_eq!(raising.coefficient, if is_raised { 3000 } else { 1 });
    }
}

#[test]
fn what_comes_back_at_once_is_greedy_however_little_it_asks_for() {
    for (after_ms, is_raised) in [(5 + 23, false), (5 + 25, true)] {
        let mut raising = after_batch(Kernel::V7_2, 8);
        assert_eq!(raising.begins(10 * SECOND + after_ms * MS, arrived(Kernel::V7_2)), is_raised);
    }
}

#[test]
fn what_it_sent_fast_counts_later() {
    // After 7000 sectors at once no batch of the next second is soft real-time, whatever its size.
    let mut raising = after_batch(Kernel::V7_2, 7000);
    assert!(!raising.begins(10 * SECOND + 500 * MS, arrived(Kernel::V7_2)));
    raising.served(8);
    raising.expired(10 * SECOND + 505 * MS, Kernel::V7_2, 0);
    assert!(!raising.begins(10 * SECOND + 900 * MS, arrived(Kernel::V7_2)));
    raising.expired(10 * SECOND + 905 * MS, Kernel::V7_2, 0);
    assert!(raising.begins(10 * SECOND + 1100 * MS, arrived(Kernel::V7_2)));
}

#[test]
fn a_queue_that_only_seeks_is_not_soft_real_time_from_5_2_on() {
    for kernel in Kernel::ALL {
        let mut raising = after_batch(kernel, 8);
        let seeks = Arrived { only_seeks: true, ..arrived(kernel) };
        let raised = raising.begins(10 * SECOND + 500 * MS, seeks);
        assert_eq!(raised, kernel == Kernel::V4_15, "{kernel:?}");

        let mut raising = after_batch(kernel, 8);
        assert!(raising.begins(10 * SECOND + 500 * MS, arrived(kernel)));
        raising.only_seeks(10 * SECOND + 501 * MS, kernel, RATE);
        assert_eq!(raising.is_on(), kernel == Kernel::V4_15, "{kernel:?}");
    }
}

#[test]
fn soft_real_time_lasts_300_ms_from_each_batch() {
    let mut raising = after_batch(Kernel::V7_2, 8);
    let first_ns = 10 * SECOND + 500 * MS;
    raising.begins(first_ns, arrived(Kernel::V7_2));
    raising.dispatched(first_ns, Kernel::V7_2, RATE);
    raising.expired(first_ns + 5 * MS, Kernel::V7_2, 0);
    let second_ns = first_ns + 200 * MS;
    // Raising continues, and does not begin anew.
    assert!(!raising.begins(second_ns, arrived(Kernel::V7_2)));
    raising.dispatched(second_ns + 300 * MS, Kernel::V7_2, RATE);
    assert!(raising.is_on());
    raising.dispatched(second_ns + 301 * MS, Kernel::V7_2, RATE);
    assert!(!raising.is_on());
}

#[test]
fn soft_real_time_before_an_interactive_time_is_over_falls_back_to_it() {
    let mut raising = Raising::NONE;
    raising.begins(SECOND, arrived(Kernel::V7_2));
    raising.served(8);
    raising.expired(SECOND + 5 * MS, Kernel::V7_2, 0);
    raising.begins(SECOND + 100 * MS, arrived(Kernel::V7_2));
    assert_eq!(raising.coefficient, 3000);
    raising.dispatched(SECOND + 401 * MS, Kernel::V7_2, RATE);
    assert_eq!(raising.coefficient, 30);
    // The rest of the interactive time counts from its beginning.
    raising.dispatched(SECOND + 3751 * MS, Kernel::V7_2, RATE);
    assert!(!raising.is_on());
}

#[test]
fn the_time_without_service_does_not_count_for_soft_real_time() {
    let mut raising = after_batch(Kernel::V7_2, 8);
    let came_ns = 10 * SECOND + 500 * MS;
    raising.begins(came_ns, arrived(Kernel::V7_2));
    raising.turn_begins(came_ns + 400 * MS);
    raising.dispatched(came_ns + 400 * MS, Kernel::V7_2, RATE);
    assert!(raising.is_on());
}

#[test]
fn a_pattern_is_known_once_the_last_request_is_back() {
    let mut raising = after_batch(Kernel::V7_2, 0);
    assert!(raising.begins(10 * SECOND + 500 * MS, arrived(Kernel::V7_2)));
    raising.served(70_000);
    // Its turn ends with a request on the drive.
    raising.expired(10 * SECOND + 510 * MS, Kernel::V7_2, 1);
    raising.emptied(10 * SECOND + 520 * MS, Kernel::V7_2, false);
    raising.ends(10 * SECOND + 520 * MS);
    assert!(!raising.begins(12 * SECOND, arrived(Kernel::V7_2)));
}

#[test]
fn until_it_is_back_4_15_takes_no_batch_for_soft_real_time() {
    for kernel in Kernel::ALL {
        let mut raising = after_batch(kernel, 8);
        raising.expired(10 * SECOND + 10 * MS, kernel, 1);
        let mut before = raising;
        let begins = before.begins(10 * SECOND + 500 * MS, arrived(kernel));
        assert_eq!(begins, kernel > Kernel::V4_15, "{kernel:?}");
        raising.emptied(10 * SECOND + 520 * MS, kernel, false);
        assert!(raising.begins(10 * SECOND + 600 * MS, arrived(kernel)), "{kernel:?}");
    }
}

#[test]
fn weights_that_were_set_are_not_raised_by_7_2() {
    for kernel in Kernel::ALL {
        let set = Arrived { is_usual_weight: false, ..arrived(kernel) };
        let mut raising = Raising::NONE;
        let raised = raising.begins(SECOND, set);
        assert_eq!(raised, kernel < Kernel::V7_2, "{kernel:?}");
    }
}

#[test]
fn a_turn_may_take_30_times_as_long_while_interactive_and_no_longer_in_soft_real_time() {
    let mut raising = Raising::NONE;
    assert_eq!(raising.turns(), 1);
    raising.begins(SECOND, arrived(Kernel::V7_2));
    assert_eq!(raising.turns(), 30);
    let mut raising = after_batch(Kernel::V7_2, 8);
    raising.begins(10 * SECOND + 500 * MS, arrived(Kernel::V7_2));
    assert_eq!(raising.turns(), 1);
}

//! The claims of the papers, as they are written there, with what ours must be within to say that
//! they hold.

use super::Paper::{Beyond, D2fq, Kyber, Mqfq, Nass};
use super::{Paper, Row};

const fn row(
    paper: Paper,
    id: &'static str,
    claim: &'static str,
    expected: &'static str,
    within: &'static str,
) -> Row {
    Row { id, paper, claim, expected, within }
}

/// Every claim of the four papers, and what users ask beyond them. Where nothing is said about what
/// ours must be within, nothing is claimed.
#[rustfmt::skip]
pub const ROWS: &[Row] = &[
    row(D2fq, "D-2.1", "Fig 2a,b: latency MQFQ > None > Bypass at each \
     QD", "MQFQ > None > bypass", "order, at each depth from 1 to 16"),
    row(D2fq, "D-2.2", "Fig 2a,b: bandwidth MQFQ < None < \
     Bypass", "MQFQ < None < bypass", "order, at each depth from 1 to 16"),
    row(D2fq, "D-2.3", "Fig 2a,b: single-core CPU: Bypass lowest; MQFQ saturates its core at the \
     lowest QD, Bypass at the \
     highest", "bypass lowest; saturation MQFQ first, bypass \
      last", "order; saturated from 99 % on"),
    row(D2fq, "D-3.1", "Fig 3 / §2.3: per round: 3 from high, then 2 from medium, then 1 from low; \
     RR within a class; commands counted, not \
     bytes", "H H H M M L, round robin within a class", "exactly"),
    row(D2fq, "D-3.2", "§3.1: fair 3:1, a in high only, b ends in low \
     only", "3:1, a high only, b low only", "5 %, 95 % of bytes"),
    row(D2fq, "D-3.3", "§3.1: cannot reach 3:1 (unfair)", "not 3:1", "more than 5 % less"),
    row(D2fq, "D-3.4", "§3.1: fair; three fifths (60 %) of b's I/O goes to the high \
     queues", "3:1, 60 % high", "5 %, 5 points"),
    row(D2fq, "D-5.1", "Fig 5a: lowest tail latency for fb at H/L=3; tail of fb grows with \
     H/L", "grows with H/L", "order"),
    row(D2fq, "D-5.2", "Fig 5b: at H/L=3 fb uses low only and fa high only; at larger H/L fb's \
     share of high-queue use grows", "from low only, growing", "95 % of bytes, order"),
    row(D2fq, "D-6.1", "Fig 6: static-4: f1 in low, f3s in high, not \
     fair", "low and high only, not fair", "95 % of bytes, more than 5 % off"),
    row(D2fq, "D-6.2", "Fig 6: dynamic: H/L becomes 22 (= 21+1; effective 1:3 × 1:7 = 1:21) and \
     all flows fair", "22, fair", "exactly, 5 %"),
    row(D2fq, "D-7.1", "Fig 7: τl=1 MB: equal share from the \
     start", "fair from the start", "0.1 s, the paper's algorithm (strict-paper)"),
    row(D2fq, "D-7.2", "Fig 7: τl=1 GB: fair point delayed to after 1 s; equal share \
     afterwards", "after 1 s", "order, strict-paper"),
    row(D2fq, "D-7.3", "Fig 7: time to fairness grows with τl; footnote: τl=1 MB is crossed by a \
     w=8 flow after 1 MB, by a w=1 flow after 128 KB", "grows with tau_l", "order, strict-paper"),
    row(D2fq, "D-8.1", "Fig 8: tail at 10 and 100 MB not significantly \
     worse", "not significantly worse", "1.25 times, strict-paper"),
    row(D2fq, "D-8.2", "Fig 8: at 1 MB tail up to 3.7× longer", "3.7 times", "30 %, strict-paper"),
    row(D2fq, "D-8.3", "§3.3: τm's latency effect is much smaller than τl's; τm = τl/2 \
     adequate", "less than half", "half of tau_l's, strict-paper"),
    row(D2fq, "D-11a.1", "Fig 11a: D2FQ, MQFQ, BFQ give 1:1 bytes; None does not (None → 1:2 by \
     command RR)", "1:1, none 1:2", "5 %"),
    row(D2fq, "D-11a.2", "Fig 11a: total bandwidth identical for None, D2FQ, \
     MQFQ", "identical", "5 %"),
    row(D2fq, "D-11a.3", "Fig 11a: BFQ total lower than the others (holds in a, b, \
     c)", "BFQ lower", "more than 5 %, in each of a, b, c"),
    row(D2fq, "D-11a.4", "Fig 11a: dynamic H/L 256 → 3", "3", "exactly"),
    row(D2fq, "D-11b.1", "Fig 11b: D2FQ/MQFQ/BFQ equal; None not (None → \
     1:3)", "1:1, none 1:3", "5 %"),
    row(D2fq, "D-11b.2", "Fig 11b: H/L 256 → 3", "3", "exactly"),
    row(D2fq, "D-11c.1", "Fig 11c: D2FQ, MQFQ correct 8:6:4:2", "8:6:4:2, none even", "5 %"),
    row(D2fq, "D-11c.2", "Fig 11c: BFQ slightly poor \
     proportionality", "slightly poor", "5 to 30 % off"),
    row(D2fq, "D-11c.3", "Fig 11c: H/L 256 → 6", "6", "exactly"),
    row(D2fq, "D-12.1", "Fig 12a: D2FQ cuts CPU by up to 45 % vs MQFQ (max over \
     a,b,c)", "45 %", "10 points"),
    row(D2fq, "D-12.2", "Fig 12a: BFQ highest CPU; MQFQ ≈ BFQ; D2FQ slightly > \
     None", "BFQ highest; MQFQ about BFQ; D2FQ slightly above none", "order; 25 %; up to 15 %"),
    row(D2fq, "D-12.3", "Fig 12b: None, D2FQ < MQFQ, \
     BFQ", "none, D2FQ below MQFQ, BFQ", "order, in each of a, b, c"),
    row(D2fq, "D-13.1", "Fig 13: None shortest everywhere; BFQ longest; D2FQ ≈ \
     MQFQ", "as claimed", "order; D2FQ and MQFQ 10 %"),
    row(D2fq, "D-13.2", "Fig 13: under fair schedulers, throttled flows have the longer \
     latency", "the less weight the longer", "order"),
    row(D2fq, "D-14.1", "Fig 14: D2FQ very stable and ~equal in both \
     flows", "stable and equal", "5 %, 5 %"),
    row(D2fq, "D-14.2", "Fig 14: MQFQ fluctuates more than D2FQ in both flows (slot exchange \
     across cores)", "MQFQ varies more", "order, in both flows"),
    row(D2fq, "D-15.1", "Fig 15a,b: static-3 fails 1:3 (base : each other flow); static-128 and \
     dynamic reach 1:3", "only static-3 fails", "5 % off"),
    row(D2fq, "D-15.2", "Fig 15c,d: static-128 tail ≫ dynamic tail for low-queue \
     flows", "much longer", "1.5 times or more"),
    row(D2fq, "D-15.3", "Fig 15e: dynamic H/L: 7 after event1; 17–18 after event2 (not 22, because \
     of the medium queue)", "7; 17-18", "exactly"),
    row(D2fq, "D-16.1", "Fig 16a: MQFQ worst in latency, bandwidth and CPU; D2FQ ≈ \
     None", "MQFQ worst; D2FQ as none", "order at each depth; 5 %"),
    row(D2fq, "D-16.2", "Fig 16a: LL-D2FQ better than the others by up to 35 % latency and 54 % \
     bandwidth", "35 %; 54 %", "5 points; 10 points"),
    row(D2fq, "D-16.3", "Fig 16b: CPU saturates at QD 9 (others) vs QD 14 \
     (LL-D2FQ)", "9; 14", "1; saturated from 99 % on"),
    row(D2fq, "D-16.4", "Fig 16b: bandwidth, latency and (until saturation) CPU all rise with \
     QD", "rising", "order, 1 % for noise"),
    row(D2fq, "D-17.1", "Fig 17: D2FQ-serial stops scaling after 12 cores \
     (cross-socket)", "12 cores", "at 24 cores at most 10 % above 12"),
    row(D2fq, "D-17.2", "Fig 17: Mindicator scales but below D2FQ at high core counts; D2FQ \
     identical to \
     None", "D2FQ as none, mindicator between it and serial", "5 %; order at 24 cores"),
    row(D2fq, "D-18.1", "Fig 18: None unfair: YCSB < FIO", "YCSB less", "5 % less or more"),
    row(D2fq, "D-18.2", "Fig 18: bandwidth ratio D2FQ 1.00–1.05, MQFQ \
     1.00–1.08", "1.00–1.05; 1.00–1.08", "5 %; 8 %"),
    row(D2fq, "D-18.3", "Fig 18: None has lower CPU than D2FQ and MQFQ (YCSB gets \
     less)", "as claimed", "order"),
    row(D2fq, "D-18.4", "Fig 18: D2FQ total bandwidth ≥ MQFQ, by up to 1.83 \
     %", "1.83 %", "0 to 1.83 %"),
    row(D2fq, "D-19.1", "Fig 19: D2FQ/MQFQ: FIO ratio >1, YCSB ratio <1; BFQ very \
     long", "as claimed", "order; BFQ twice or more"),
    row(D2fq, "D-19.2", "§4.4: queue-sharing layout (8 triples) still fair", "1:1", "5 %"),
    row(Mqfq, "M-T1", "Thm 1: |W_f/r_f − W_m/r_m| ≤ 2T + l_f/r_f + l_m/r_m over every \
     interval", "never exceeded", "a unit per flow and port, for rounding"),
    row(Mqfq, "M-T2", "Thm 2: ≤ (D+1)(2T + l_f/r_f + \
     l_m/r_m)", "never exceeded", "a unit per flow and port, for rounding"),
    row(Mqfq, "M-T3", "§2.2: MQFQ(1) bound = SFQ's; MQFQ(D) = SFQ(D)'s; D=1,T=0 order identical to \
     SFQ on one queue", "the same order", "exactly"),
    row(Mqfq, "M-T4", "§2.1: VT never decreases; outstanding ≤ D always; \
     work-conserving", "kept", "exactly"),
    row(Mqfq, "M-P.1", "§4: internal parallelism 64 (P3700), 128 (NVMf): throughput at D equals \
     max and drops for smaller D", "P3700 64, NVMf 128", "exactly, of powers of two"),
    row(Mqfq, "M-P.2", "§4: P3700 ≈460 K (text also \"nearly 0.5 M\") 4 KB IOPS; NVMf ≈4 M 1 KB \
     IOPS", "P3700 460 K (4 KB), NVMf 4 M (1 KB)", "10 %"),
    row(Mqfq, "M-5a.1", "Fig 5 left: nosched shares in proportion to request size (2:1), i.e. \
     slowdowns ≈1.5 / 3", "2:1", "10 %"),
    row(Mqfq, "M-5a.2", "Fig 5 left: MQFQ and BFQ: equal (MQFQ at the ideal slowdown of 2× each, \
     dashed line; BFQ by throughput)", "2 each; equal", "10 %"),
    row(Mqfq, "M-5b.1", "Fig 5 mid: nosched proportional to #queues (2:1)", "2:1", "10 %"),
    row(Mqfq, "M-5b.2", "Fig 5 mid: MQFQ ≈2× each, BFQ equal by \
     throughput", "2 each; equal", "10 %"),
    row(Mqfq, "M-5c.1", "Fig 5 right: MQFQ: bandwidth 1:2:3 (slowdowns 6/3/2); nosched \
     ≈1:1:1", "6/3/2, unscheduled 3/3/3", "10 % of each slowdown"),
    row(Mqfq, "M-5d.1", "Fig 5 top bars: MQFQ ≈ nosched; BFQ \"much higher cost\": lower \
     aggregate, worst on \
     NVMf", "MQFQ as unscheduled; BFQ lower, most so on NVMf", "5 %; more than 5 %; order"),
    row(Mqfq, "M-6.1", "Fig 6: FlashX slowdown 3.78× (nosched) → 1.33× (MQFQ) on \
     NVMf", "3.78× (nosched) → 1.33× (MQFQ)", "30 % each"),
    row(Mqfq, "M-6.2", "Fig 6: MQFQ average over devices: FlashX 33 %, FIO 14 % slowdown (better \
     than 2×)", "33 %; 14 %", "20 points, and below 2 times"),
    row(Mqfq, "M-6.3", "Fig 6: BFQ takes FlashX from almost 4× to <2× but slows FIO \
     heavily", "FlashX below 2, fio slow", "FlashX below 2 times, fio above"),
    row(Mqfq, "M-7.1", "Fig 7 left: Aerospike 6.57× → 1.03×", "6.57× → 1.03×", "30 %; 10 %"),
    row(Mqfq, "M-7.2", "Fig 7 left: MQFQ: Aerospike 3 %, FIO <20 %; Aerospike ≈1 M tx/s alone, \
     CPU-bound before device-bound", "3 %; 20 %; 1 M", "10 %; 20 %; 10 %"),
    row(Mqfq, "M-7.3", "Fig 7 left: BFQ: FIO 15× slowdown, Aerospike only modestly \
     better", "15×", "30 %, and less than nosched"),
    row(Mqfq, "M-7.4", "Fig 7 right: MQFQ: each gets half (2×)", "2 each", "10 %"),
    row(Mqfq, "M-8.1", "Fig 8: with 15–19 threads MQFQ >3 M (abstract 3.1 \
     M)", "3.1 M", "10 %, the best of 15 to 19 threads"),
    row(Mqfq, "M-8.2", "Fig 8: MQFQ = 2.6× MQFQ-serial, 20× \
     BFQ", "2.6; 20", "20 %; 30 %, at the best of 15 to 19 threads"),
    row(Mqfq, "M-8.3", "Fig 8: \"71 % of the peak\"", "71 %", "70 to 80 %: 3.1 M of 4 M is 77 %"),
    row(Mqfq, "M-8.4", "Fig 8: order nosched > MQFQ > serial > \
     BFQ", "nosched > MQFQ > serial > BFQ", "order at 16 threads"),
    row(Mqfq, "M-9.1", "Fig 9: mindicator better by nearly 40 % at 32 \
     threads", "40 %", "10 points"),
    row(Mqfq, "M-10.1", "Fig 10L: wheel > 1 µs > 5 µs throughput; even 1 µs polling does not reach \
     the wheel", "wheel > 1 us > 5 us", "order at 32 threads"),
    row(Mqfq, "M-10.2", "Fig 10R: wheel: no spurious reschedules, count ≤ completions; polling's \
     waste grows with #CPUs; near-equal at few \
     CPUs", "none for nothing, at most one a completion; polling's \
      grow", "5 % for nothing; order of 4, 16, 32 threads"),
    row(Mqfq, "M-11.1", "Fig 11: token tree >2× atomic, +36 % over \
     sbitmap", "more than 2; 1.36", "at least 2; 10 points"),
    row(Mqfq, "M-11.2", "Fig 11: atomic counter does not scale beyond the first \
     socket", "no gain beyond the first socket", "at 16 threads at most 10 % above 8"),
    row(Mqfq, "M-D.1", "§3.4: smaller D → not saturated; larger D → more unfair (worse for \
     bursts); 1 thread works at T=0; many small-request threads need larger \
     T", "as claimed", "5 % lost up to D = 16; p99 10 % longer from 32 to 128; 2 % at T = 0"),
    row(Mqfq, "M-K.1", "§3.2–3.3: the tokens of the tree and of outstanding requests are D \
     together; a throttled port is in the wheel's bucket that its lead asks \
     for", "D together", "exactly"),
    row(Kyber, "K-1.1", "Fig 1: None: no proportionality (about equal)", "25 % each", "10 %"),
    row(Kyber, "K-1.2", "Fig 1: BFQ proportional", "54/27/14/5 %", "10 % of each"),
    row(Kyber, "K-1.3", "Fig 1: BFQ aggregate ≈ 0.38× None", "0.38×", "20 %"),
    row(Kyber, "K-1.4", "Fig 1: BFQ's top-weight cgroup < any cgroup under \
     None", "as claimed", "order"),
    row(Kyber, "K-4a.1", "Fig 4a: Kyber-fairness ≈ None in random and sequential reads and \
     writes", "the same", "5 %"),
    row(Kyber, "K-4a.2", "Fig 4a: vs BFQ: 2.68× random read, 3.61× random \
     write", "2.68×; 3.61×", "20 % each"),
    row(Kyber, "K-4a.3", "Fig 4a: sequential gain \"not impressive\" (BFQ close; gain < both \
     random gains)", "as claimed", "order; at most 1.25×"),
    row(Kyber, "K-4b.1", "Fig 4b: Kyber-fairness \"ensures the fairness\"; None \
     lower", "near 1", "0.95 or more, and above none's"),
    row(Kyber, "K-5a.1", "Fig 5a: up to 1.33× BFQ throughput", "1.33×", "10 %"),
    row(Kyber, "K-5a.2", "Fig 5a: gap BFQ to Kyber-fairness narrowest when LUN3 has the top \
     weight", "as claimed", "order"),
    row(Kyber, "K-5b.1", "Fig 5b: fairness index slightly better than \
     BFQ", "better", "order, in all four"),
    row(Kyber, "K-6.1", "Fig 6: Kyber-fairness ≈ None throughout; BFQ falls \
     sharply", "as claimed", "5 % of none at 1, 2, 4, 8 cgroups; BFQ at 8 at most 70 % of 1"),
    row(Kyber, "K-w.1", "§IV: over-predicted tokens → less fair; under-predicted → more refills \
     (overhead)", "as claimed", "0.05 of the index; throttled twice as often"),
    row(Kyber, "K-w.2", "§II: work-conserving: device not idle while any cgroup has \
     requests", "never", "exactly"),
    row(Kyber, "K-T4", "Table 4: traces: average size, \
     R:W", "31.1 KB 3.44:1, 24.8 KB 3.19:1, 50.4 KB 2.78:1, 63.7 KB 1.60:1", "5 %"),
    row(Nass, "N-3.1", "Fig 3 (T1,T2), NCQ 32: CFQ, CFQ-NA: random workload takes most bandwidth \
     (BDR-R > BDR-S)", "BDR-R > BDR-S", "5 % or more"),
    row(Nass, "N-3.2", "Fig 3: FIOPS, FlashFQ: sequential gets high \
     bandwidth", "high BDR-S", "90 % of BDR-R or more"),
    row(Nass, "N-3.3", "Fig 3: BFQ, BFQ-NA: FV improves as NCQ grows \
     8→32", "grows", "0.01 or more"),
    row(Nass, "N-3.4", "Fig 3: FIOPS: BDR-S falls and FV rises as NCQ \
     grows", "falls; rises", "0.01 or more"),
    row(Nass, "N-3.5", "Obs 1: merging lowers the sequential workload's request count and FV under \
     low switch frequency", "as claimed", "a third fewer commands, 0.01"),
    row(Nass, "N-4.1", "Fig 4 (T3,T4): all schedulers favour reads at NCQ 32 \
     (T3)", "BDR-R > BDR-W", "order, in all six"),
    row(Nass, "N-4.2", "Fig 4: T3: FV improves as NCQ shrinks (reads merge \
     too)", "rises", "0.01 or more, in all six"),
    row(Nass, "N-4.3", "Obs 2: read/write asymmetry causes conflict; equal R/W latency removes \
     it", "fair", "FV 0.95 or more, and not less than before"),
    row(Nass, "N-5.1", "Fig 5 (T5,T6), NCQ 32: BFQ, BFQ-NA low FV; 4K \
     suffers", "low; BDR-4 < BDR-128", "FV below 0.9, order"),
    row(Nass, "N-5.2", "Fig 5: BFQ and FlashFQ FV rise as NCQ shrinks", "rise", "0.01 or more"),
    row(Nass, "N-6.1", "Fig 6 (T7,T8), NCQ 32: BFQ-NA, CFQ-NA, FIOPS unfair; CFQ and FlashFQ \
     fairer but lower DU", "as claimed", "order"),
    row(Nass, "N-6.2", "Fig 6: CFQ write test (T8) low FV (no write \
     anticipation)", "lower than T7", "5 % or more"),
    row(Nass, "N-6.3", "Fig 6: FIOPS FV rises as NCQ shrinks", "rises", "0.01 or more"),
    row(Nass, "N-O5", "Obs 5: limiting the aggressive workload helps FV; too short an NCQ lowers \
     DU", "as claimed", "0.01 or more each"),
    row(Nass, "N-O6", "Obs 6: CFQ vs CFQ-NA: anticipation lowers DU (all \
     tests)", "lower in all", "0.005 or more"),
    row(Nass, "N-hdd", "§II-B: HDD-like device shows no NCQ \
     conflict", "none", "FV at NCQ 32 at most 0.05 below that at 1, of those that are unfair on \
      the SSD (N-6.1)"),
    row(Nass, "N-8.1", "Fig 8: intensive workload alone vs β: DU rises with β; first obvious drop \
     at β=8", "8", "the first below 90 %, of 24, 16, 12, 8, 4, 2, 1"),
    row(Nass, "N-9.1", "Fig 9 (T5): FIOPS, FIOPS(N): high FV and DU, no side \
     effect", "as claimed", "FV 0.9 or more, DU 10 %"),
    row(Nass, "N-9.2", "Fig 9: FV: CFQ(N) +4 %, FlashFQ(N) +11 %, BFQ(N) +57 \
     %", "+4 %; +11 %; +57 %", "sign and order"),
    row(Nass, "N-9.3", "Fig 9: DU high for original and (N) alike", "alike", "10 %"),
    row(Nass, "N-10.1", "Fig 10 (T7): DU: CFQ(N) +59 %, FlashFQ(N) +70 %, BFQ(N) +11 %, FIOPS(N) \
     slight drop", "+59 %; +70 %; +11 %; less", "20 points each; 0 to 20 % less"),
    row(Nass, "N-10.2", "Fig 10: FV: CFQ(N) +3 %, BFQ(N) +40 %, FIOPS(N) +35 %; FlashFQ(N) falls \
     but both BDRs rise", "+3 %; +40 %; +35 %; falls", "20 points each; order"),
    row(Nass, "N-11.1", "Fig 11 (T3): all originals poor FV; NM FV ≥ +30 %; DU of Ori > \
     NM", "+30 % or more", "originals below 0.9; as claimed"),
    row(Nass, "N-11.2", "Fig 11: N vs NM FV: BFQ +6, CFQ +2, FlashFQ +2, FIOPS +3 %; DU: +13, +6, \
     +9, +12 %", "all rise", "order"),
    row(Nass, "N-12.1", "Fig 12 (Filebench): FV: BFQ(N) +16, CFQ(N) +11, FlashFQ(N) +15, FIOPS(N) \
     +23 %", "+16; +11; +15; +23 %", "5 % or more each"),
    row(Nass, "N-12.2", "Fig 12: file server dominates the originals \
     (unfair)", "the highest BDR", "order, in all four"),
    row(Nass, "N-12.3", "Fig 12: BFQ(N) still low FV, but mail BDR +35 %, DB BDR +54 \
     %", "+35 %; +54 %", "20 % or more each"),
    row(Nass, "N-12.4", "Fig 12: DU: BFQ(N) +9, FlashFQ(N) +18, CFQ(N) +29 %; FIOPS(N) slight \
     drop", "+9; +18; +29 %; less", "rise; 0 to 10 % less"),
    row(Nass, "N-13.1", "Fig 13a: CFQ: low FV 12–20 s with OLTP <10 % device time; FV higher 20–34 \
     s; high 35–39 s", "below 10 %; rising", "as claimed; 0.9 at the end"),
    row(Nass, "N-13.2", "Fig 13a: CFQ(N): FV always >0.9", "above 0.9", "exactly"),
    row(Nass, "N-13.3", "Fig 13b: CFQ(N) DU +10 % while concurrent; CFQ's DU dips when bursts \
     end", "+10 %", "0 to 20 %"),
    row(Nass, "N-14.1", "Fig 14: CPU CFQ 22.3 → CFQ(N) 23.8 % (+1.5); FIOPS 19.9 → 21.8 % \
     (+1.9)", "+1.5; +1.9 points", "at most that: it is what NASS costs"),
    row(Nass, "N-U1", "Alg 1: worked examples: new workload MDN=32/n; sixteen 4 KB → Aggre 16; \
     halving; SBDA direction", "32, 16, 8 at once", "exactly"),
    row(Beyond, "X-tenants", "How fair is it with 2 to 10,000 tenants, and what of the \
     tail?", "", ""),
    row(Beyond, "X-weights", "Which weights can be had, 1:1 to 1:10,000?", "", ""),
    row(Beyond, "X-window", "What does the device's window W do to shares and tails?", "", ""),
    row(Beyond, "X-depth", "What does D do?", "", ""),
    row(Beyond, "X-threshold", "What does T do?", "", ""),
    row(Beyond, "X-auto", "Does the rule of `fairq calibrate` choose D and T well (MQFQ's \
     announced future work)?", "", ""),
    row(Beyond, "X-which", "Which policy when?", "", ""),
];

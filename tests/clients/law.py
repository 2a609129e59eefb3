"""Shares without a clock: checks the guarantee of fair queueing on a recording of a running server's decisions.

For two tenants that both have requests waiting throughout an interval, the services issued to them, each divided by its tenant's
weight, differ by at most (D + 1) (2 T + l_f / r_f + l_m / r_m) (Section 2.2 of the MQFQ paper; with T = 0 and D = 1 it is start-time
fair queueing). If a client has no CPU for a while, an interval ends, but the bound still holds. A single waiting request is an
interval, so the bound also limits the service of other tenants before that request is issued."""

import csv
import itertools
import os
import tempfile

import rig
from rig import check

# A policy with that guarantee, which shares bytes. D and T are small compared to the bytes
# recorded.
DEPTH, THRESHOLD = 4, 8192
POLICY = f"mqfq:slots={DEPTH},threshold={THRESHOLD},cost=bytes"


def decisions(control, seconds=0.4):
    """A recording of `seconds`: rows of `fairq ctl trace --format csv`, in order. On one shard the order is exact."""
    with tempfile.TemporaryDirectory(prefix="fairq-") as folder:
        path = os.path.join(folder, "trace.csv")
        done = rig.run(rig.fairq(), "ctl", "--control", control, "trace", "--seconds", seconds, "--format", "csv", "-o", path)
        check("were lost" not in done.stderr, done.stderr)
        with open(path, encoding="utf-8") as file:
            return [row for row in csv.DictReader(file) if row["tenant"]]


def in_bytes(row):
    return int(row["bytes"])


def staged_before(rows):
    """The requests submitted before the recording began: tenant, shard and tag."""
    seen, before = set(), set()
    for row in rows:
        key = (row["tenant"], row["shard"], row["tag"])
        if row["event"] != "arrive" and key not in seen and row["event"] in ("issue", "cancel"):
            before.add(key)
        seen.add(key)
    return before


def widest(rows, weights, cost):
    """Over the intervals in which both tenants have requests waiting: for each tenant the largest lead over the other, in `cost`
    (of a row) divided by weight; the service issued to both; and the largest request of each."""
    first, second = weights
    waiting = {name: set() for name in weights}
    for tenant, shard, tag in staged_before(rows):
        if tenant in weights:
            waiting[tenant].add((shard, tag))
    lead = least = most = total = 0
    largest, ahead = dict.fromkeys(weights, 0), dict.fromkeys(weights, 0)
    for row in rows:
        tenant = row["tenant"]
        if tenant not in weights:
            continue
        tag = (row["shard"], row["tag"])
        if row["event"] == "arrive":
            waiting[tenant].add(tag)
        elif row["event"] in ("issue", "cancel"):
            if row["event"] == "issue":
                largest[tenant] = max(largest[tenant], cost(row))
                if all(waiting.values()):
                    total += cost(row)
                    lead += cost(row) / weights[tenant] * (1 if tenant == first else -1)
                    least, most = min(least, lead), max(most, lead)
                    ahead[first], ahead[second] = max(ahead[first], lead - least), max(ahead[second], most - lead)
            waiting[tenant].discard(tag)
        if not all(waiting.values()):
            lead = least = most = 0
    return ahead, total, largest


def holds(rows, weights, cost=in_bytes, at_least=(), credit=0, depth=DEPTH, threshold=THRESHOLD):
    """Checks the bound on a recording, for each two of the tenants in `weights`. Returns the service issued while both waited, by pair.
    Requests of the tenants in `at_least` may be charged more than `cost` returns, so other tenants may be ahead of them. A tenant
    whose requests are cancelled is refunded later, which may exceed the bound by `credit` bytes at weight 100."""
    issued = {}
    for pair in itertools.combinations(weights, 2):
        two = {name: weights[name] for name in pair}
        ahead, issued[pair], largest = widest(rows, two, cost)
        bound = (depth + 1) * (2 * threshold / 100 + sum(largest[name] / two[name] for name in pair)) + credit / 100
        for name, other in (pair, pair[::-1]):
            said = f"{name} is {ahead[name]:.0f} ahead of {other}, at most {bound:.0f}, in {issued[pair]} issued to {two}"
            check(ahead[name] <= bound or other in at_least, said)
    return issued


def shares(control, weights, enough=8 << 20, seconds=0.4, **more):
    """Records, `seconds` at a time, until `enough` was issued while two tenants both waited, and checks the bound on each recording; returns the last."""
    seen, rows = 0, []

    def recorded():
        nonlocal seen, rows
        rows = decisions(control, seconds)
        seen += sum(holds(rows, weights, **more).values())
        return seen >= enough

    # A busy machine issues little in each recording.
    rig.until(recorded, 240, f"tenants wait while {enough} is issued to them")
    return rows

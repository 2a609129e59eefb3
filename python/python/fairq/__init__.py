"""fairq's laboratory: scenarios of weighted fair storage sharing, simulated in this process.

>>> import fairq
>>> table = fairq.run("my.toml", policies=["none", "mqfq"])
>>> table = fairq.sweep("my.toml", {"tenant.db.weight": [100, 300, 1000]}, seeds=10)

A scenario is the path of a file for `fairq lab run` (docs/fairq.scenario.toml has every key), the text
of such a file, or a dict with the same keys. The result is an Arrow table with a row for each tenant of
each run; the same scenario, policy and seed give the same bytes on any machine.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Any, NamedTuple, Union

import pyarrow as pa

from . import _fairq

__all__ = ["Scenario", "policies", "run", "sweep"]

#: The path of a scenario file (it ends with .toml), the text of such a file, or a dict with its keys.
Scenario = Union[str, "os.PathLike[str]", Mapping[str, Any]]

_HISTOGRAM = pa.list_(pa.struct([("ns", pa.uint64()), ("count", pa.uint64())]))
_MEASURED = [
    ("weight", pa.uint16()),
    ("entitled", pa.float64()),
    ("share", pa.float64()),
    ("iops", pa.float64()),
    ("bytes_per_s", pa.float64()),
    ("mean_ns", pa.float64()),
    ("p50_ns", pa.uint64()),
    ("p99_ns", pa.uint64()),
    ("p999_ns", pa.uint64()),
    ("slowdown", pa.float64()),
]
#: Utilization of the device's parts (0 to 1), the filled part of its buffer, and its write amplification.
_DEVICE = [
    "controller",
    "reads",
    "programs",
    "moves",
    "erases",
    "channels",
    "link_out",
    "link_in",
    "buffer",
    "amplification",
]


class _Unit(NamedTuple):
    """A piece of work: one point on one seed under some policies."""

    scenario: str
    name: str
    folder: str
    policies: str
    seed: int | None
    alone: bool
    histograms: bool


def _carry_out(unit: _Unit) -> str:
    return _fairq.run(*unit)


def policies() -> list[str]:
    """The names of all policies. Each can have keys, as in `mqfq:slots=64`."""
    return _fairq.policies()


def run(
    scenario: Scenario,
    policies: Iterable[str] = ("none", "mqfq"),
    *,
    seeds: int = 1,
    seed: int | None = None,
    alone: bool = False,
    histograms: bool = False,
    executor: Executor | None = None,
) -> pa.Table:
    """Runs a scenario, with its own `[sweep]`, under each policy. `sweep` describes arguments and result."""
    return sweep(
        scenario, {}, policies, seeds=seeds, seed=seed, alone=alone, histograms=histograms, executor=executor
    )


def sweep(
    scenario: Scenario,
    over: Mapping[str, Sequence[Any]],
    policies: Iterable[str] = ("none", "mqfq"),
    *,
    seeds: int = 1,
    seed: int | None = None,
    alone: bool = False,
    histograms: bool = False,
    executor: Executor | None = None,
) -> pa.Table:
    """Runs a scenario with every combination of values of some keys.

    over: keys by their path (`"tenant.db.weight"`, `"tenant.*.depth"`, `"device"`), each with its
        values, in addition to the keys of the scenario's own `[sweep]`.
    policies: names with keys, as for `fairq bench --policy`.
    seeds, seed: the number of seeds, and the first of them (by default the scenario's seed).
    alone: also run each tenant alone, for `slowdown`: the bytes that it gets alone divided by those
        that it gets beside the others.
    histograms: adds the column `histogram`: latencies in nanoseconds, with their numbers of requests.
    executor: runs the work: any `concurrent.futures` executor, such as Dask's
        (`client.get_executor()`). Its workers need the files that a scenario names (traces, profiles).
        By default threads of this process, one for each CPU.

    Returns a table with a column for each key, and `seed`, `policy`, `tenant`, `weight`, `entitled`,
    `share` (both as parts of all bytes), `iops`, `bytes_per_s`, `mean_ns`, `p50_ns`, `p99_ns`,
    `p999_ns`, `slowdown`. Further columns describe the device, with the same values for all tenants of
    a run: the utilization of its parts from 0 to 1 (`device_controller`; of the dies `device_reads`,
    `device_programs`, `device_moves`, `device_erases`; `device_channels`, `device_link_out`,
    `device_link_in`), the filled part of its buffer (`device_buffer`), and its write amplification
    (`device_amplification`, null unless `mapping = "pages"`).

    Raises ValueError with the line and the cure if the scenario cannot run, and RuntimeError if a
    policy broke one of the laws that the laboratory checks in each run.
    """
    if isinstance(policies, str):
        raise ValueError("policies is a list of names: write [\"mqfq\"]")
    if seeds < 1:
        raise ValueError(f"seeds is {seeds}: it has to be at least one")
    names = list(policies)
    if not names:
        raise ValueError("policies is empty: name at least one")
    text, is_json, name, folder = _read(scenario)
    pairs = json.dumps([[key, list(values)] for key, values in over.items()])
    points = _fairq.points(text, is_json, name, folder, pairs)
    # With `alone`, one unit has all policies, because the runs of tenants alone do not depend on them.
    together = [",".join(names)] if alone else names
    units = [
        (
            json.loads(settings),
            _Unit(point, shown, folder, group, (own if seed is None else seed) + more, alone, histograms),
        )
        for settings, point, shown, own in points
        for more in range(seeds)
        for group in together
    ]
    if executor is not None:
        return _table(units, executor, histograms)
    with ThreadPoolExecutor(os.cpu_count()) as threads:
        return _table(units, threads, histograms)


def _read(scenario: Scenario) -> tuple[str, bool, str, str]:
    """The scenario's text, whether it is JSON, its name in messages, and the folder of its relative paths."""
    if isinstance(scenario, Mapping):
        return json.dumps(scenario), True, "the scenario", ""
    shown = os.fspath(scenario)
    if "\n" in shown:
        return shown, False, "the scenario", ""
    with open(shown, encoding="utf-8") as file:
        return file.read(), False, shown, os.path.abspath(os.path.dirname(shown))


def _table(units: list[tuple[list[list[Any]], _Unit]], executor: Executor, histograms: bool) -> pa.Table:
    futures = [executor.submit(_carry_out, unit) for _, unit in units]
    rows = []
    try:
        for (settings, _), future in zip(units, futures):
            cell = json.loads(future.result())
            for done in cell["runs"]:
                device = done.get("device") or {}
                for flow in done["flows"]:
                    row = dict(settings)
                    row |= {"seed": cell["seed"], "policy": done["policy"], "tenant": flow["name"]}
                    row |= {column: flow[column] for column, _ in _MEASURED}
                    row |= {f"device_{part}": device.get(part) for part in _DEVICE}
                    if histograms:
                        row["histogram"] = [{"ns": ns, "count": count} for ns, count in flow["histogram"]]
                    rows.append(row)
    finally:
        for future in futures:
            future.cancel()
    # A swept seed needs no column of its own: there is a column `seed` in any case.
    keys = list(dict.fromkeys(key for settings, _ in units for key, _ in settings if key != "seed"))
    columns = {key: _values([row[key] for row in rows]) for key in keys}
    columns |= {"seed": pa.array([row["seed"] for row in rows], pa.uint64())}
    columns |= {name: pa.array([row[name] for row in rows], pa.string()) for name in ("policy", "tenant")}
    kinds = _MEASURED + [(f"device_{part}", pa.float64()) for part in _DEVICE]
    columns |= {name: pa.array([row[name] for row in rows], kind) for name, kind in kinds}
    if histograms:
        columns["histogram"] = pa.array([row["histogram"] for row in rows], _HISTOGRAM)
    return pa.table(columns)


def _values(values: list[Any]) -> pa.Array:
    """A column of swept values; values without a common type in Arrow become JSON texts."""
    try:
        return pa.array(values)
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        return pa.array([json.dumps(value) for value in values])

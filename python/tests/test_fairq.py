"""Scenarios and sweeps in this process."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pytest

import fairq

SCENARIO: dict[str, Any] = {
    "device": "z-ssd",
    "duration": "40ms",
    "cores": 2,
    "tenant": [{"name": "db", "weight": 300, "depth": 64}, {"name": "web", "weight": 100, "depth": 64}],
}
TEXT = """
device = "z-ssd"
duration = "40ms"
cores = 2
[[tenant]]
name = "db"
weight = 300
depth = 64
[[tenant]]
name = "web"
weight = 100
depth = 64
"""
COLUMNS = ["seed", "policy", "tenant", "weight", "entitled", "share", "iops", "bytes_per_s", "mean_ns", "p50_ns", "p99_ns"]


def bytes_of(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def test_a_run_is_a_row_for_each_tenant_of_each_policy() -> None:
    table = fairq.run(SCENARIO)
    assert table.column_names[:13] == [*COLUMNS, "p999_ns", "slowdown"]
    assert all(name.startswith("device_") for name in table.column_names[13:])
    assert table["tenant"].to_pylist() == ["db", "web"] * 2
    none, _, db, _ = table["share"].to_pylist()
    assert 0.45 < none < 0.55 and 0.70 < db < 0.78
    assert table["slowdown"].to_pylist() == [None] * 4
    assert table.equals(fairq.run(TEXT)), "a text says the same as values"


def test_a_file_and_what_it_sweeps(tmp_path: pathlib.Path) -> None:
    (tmp_path / "jobs.fio").write_text("[batch]\nrw=randwrite\nbs=64k\niodepth=8\n")
    path = tmp_path / "my.toml"
    path.write_text('fio = ["jobs.fio"]\n' + TEXT + '[sweep]\n"tenant.web.depth" = [1, 64]\n')
    table = fairq.sweep(path, {"device": ["z-ssd", "p4500"]}, ["mqfq"], seed=5, seeds=2)
    assert table.num_rows == 2 * 2 * 2 * 3
    assert table.column_names[:2] == ["tenant.web.depth", "device"]
    assert table["device"].to_pylist()[:12] == ["z-ssd"] * 6 + ["p4500"] * 6
    assert set(table["seed"].to_pylist()) == {5, 6}
    assert "batch" in table["tenant"].to_pylist()


def test_a_seed_is_the_scenarios_unless_it_is_given() -> None:
    def seeds(table: pa.Table) -> list[int]:
        return list(table["seed"].to_pylist()[::2])

    assert seeds(fairq.run(SCENARIO | {"seed": 7}, ["none"], seeds=2)) == [7, 8]
    assert seeds(fairq.run(SCENARIO | {"seed": 7}, ["none"], seed=3)) == [3]
    assert seeds(fairq.sweep(SCENARIO, {"seed": [4, 9]}, ["none"])) == [4, 9]


def test_what_the_device_did_is_in_the_rows_of_its_tenants() -> None:
    writes = SCENARIO | {"device": "p3700", "state": "steady", "mapping": "pages"}
    writes["tenant"] = [{"name": name, "depth": 64, "rw": "randwrite"} for name in ("a", "b")]
    table = fairq.run(writes, ["none"])
    (full, same), (times, _) = table["device_buffer"].to_pylist(), table["device_amplification"].to_pylist()
    assert 0.9 < full == same <= 1 < times
    reads = fairq.run(SCENARIO, ["none"])
    assert reads["device_channels"].to_pylist()[0] > 0.1
    assert reads["device_amplification"].to_pylist() == [None, None]


def test_values_that_differ_in_kind_are_json() -> None:
    table = fairq.sweep(SCENARIO, {"tenant.db.bs": ["4k", [["4k", 1], ["8k", 1]]]}, ["none"])
    assert table["tenant.db.bs"].to_pylist()[::2] == ['"4k"', '[["4k", 1], ["8k", 1]]']


def test_slowdowns_and_histograms() -> None:
    table = fairq.run(SCENARIO, ["none", "mqfq"], alone=True, histograms=True)
    assert all(1.0 < times < 6.0 for times in table["slowdown"].to_pylist())
    for histogram, iops in zip(table["histogram"].to_pylist(), table["iops"].to_pylist()):
        count = sum(bucket["count"] for bucket in histogram)
        assert count == round(iops * 0.036), "a tenth of the duration is not measured"


@pytest.mark.parametrize("kind", [ThreadPoolExecutor, ProcessPoolExecutor])
def test_any_executor_gives_the_same_bytes(kind: type) -> None:
    over: dict[str, list[Any]] = {"tenant.db.weight": [100, 300], "device": ["z-ssd", "p4500"]}
    here = fairq.sweep(SCENARIO, over, seeds=2)
    with kind(2) as executor:
        there = fairq.sweep(SCENARIO, over, seeds=2, executor=executor)
    assert bytes_of(here) == bytes_of(there)


def test_what_cannot_be_is_a_value_error_with_its_cure() -> None:
    with pytest.raises(ValueError, match=r"no \[\[tenant\]\] is called `x`: there are db, web"):
        fairq.sweep(SCENARIO, {"tenant.x.weight": [1]})
    with pytest.raises(ValueError, match="unknown key `bsize`"):
        fairq.run(TEXT.replace("depth", "bsize"))
    with pytest.raises(ValueError, match="no profile is called `none`"):
        fairq.run(SCENARIO | {"device": "none"})
    with pytest.raises(ValueError, match="nonsense"):
        fairq.run(SCENARIO, ["nonsense"])
    with pytest.raises(ValueError, match="write"):
        fairq.run(SCENARIO, "mqfq")
    with pytest.raises(ValueError, match="at least one"):
        fairq.run(SCENARIO, seeds=0)
    with pytest.raises(FileNotFoundError):
        fairq.run("nowhere.toml")


def test_the_command_line_gives_the_same(tmp_path: pathlib.Path) -> None:
    binary = pathlib.Path(__file__).parents[2] / "target/release/fairq"
    if not binary.exists():
        pytest.skip(f"{binary} is not there: cargo build --release -p fairq")
    path = tmp_path / "my.toml"
    path.write_text(TEXT)
    done = subprocess.run([binary, "lab", "run", path, "--json"], stdout=subprocess.PIPE, check=True)
    flows = [flow for run in json.loads(done.stdout)[0]["runs"] for flow in run["flows"]]
    table = fairq.run(path)
    for column in COLUMNS[4:]:
        assert table[column].to_pylist() == [flow[column] for flow in flows], column


def test_there_are_policies() -> None:
    assert {"none", "mqfq", "d2fq", "kyber-fair"} <= set(fairq.policies())


def test_its_types_hold() -> None:
    folder = pathlib.Path(__file__).parents[1]
    done = subprocess.run([sys.executable, "-m", "mypy"], cwd=folder, stdout=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 0, done.stdout

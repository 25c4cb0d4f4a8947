"""Memory and speed of `pbr-jax data import` on tables of any size, as CSV, JSON lines and Parquet.

    nice python benchmarks/import_stream.py --megabytes 2000

Each table is made in a temporary folder, imported by a process of its own, and deleted. A table of 2 GB needs
about 9 GB of disk meanwhile. Rows of users are mixed, as in logs of a service.
"""

import argparse
import csv
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

WORDS = 70  # of a row
USERS_EACH = 50  # rows of a user, on average
BEGIN = 1_600_000_000
COLUMNS = ("user", "time", "question", "reply")
BATCH = 10_000  # rows of a row group of Parquet


def rows(megabytes: float, seed: int = 0) -> Iterator[tuple[str, str, str, str]]:
    """Rows of about so many megabytes of CSV in all."""
    draw, written, number = random.Random(seed), 0, 0
    words = ["".join(draw.choices("abcdefghijklmnopqrstuvwxyz", k=draw.randint(2, 9))) for _ in range(20_000)]
    users = max(int(megabytes * 1e6 / (WORDS * 6.5) / USERS_EACH), 2)
    while written < megabytes * 1e6:
        text = draw.choices(words, k=WORDS)
        asked, said = " ".join(text[:20]), " ".join(text[20:])
        row = (f"user {draw.randrange(users)}", str(BEGIN + 60 * number), asked, said)
        written += sum(map(len, row)) + len(row)
        number += 1
        yield row


def write(path: Path, megabytes: float) -> None:
    """The rows as a file whose suffix says its format."""
    if path.suffix == ".parquet":
        import pyarrow as pa
        from pyarrow import parquet

        schema = pa.schema([(name, pa.string()) for name in COLUMNS])
        table = rows(megabytes)
        with parquet.ParquetWriter(path, schema) as file:
            while some := list(islice(table, BATCH)):
                file.write_table(pa.table(dict(zip(COLUMNS, map(list, zip(*some)))), schema))
        return
    with path.open("w", encoding="utf-8", newline="") as file:
        if path.suffix == ".csv":
            csv.writer(file).writerow(COLUMNS)
            csv.writer(file).writerows(rows(megabytes))
        else:
            file.writelines(json.dumps(dict(zip(COLUMNS, row))) + "\n" for row in rows(megabytes))


def imported(path: Path, out: Path) -> tuple[float, float]:
    """Seconds, and the peak of the process's resident memory in MB."""
    start = time.monotonic()
    words = [sys.executable, "-m", "pbr_jax", "data", "import", str(path), "--out", str(out)]
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if status:
        raise SystemExit(f"{path}: the import ended with {process.returncode}")
    return time.monotonic() - start, usage.ru_maxrss / 1024  # Linux counts KiB


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--megabytes", type=float, default=2000)
    parser.add_argument("--formats", nargs="+", default=["csv", "jsonl", "parquet"])
    parser.add_argument("--folder", help="where the temporary folder is made; else where the system has it")
    options = parser.parse_args()
    print("| format | file, MB | rows | seconds | rows a second | peak RSS, MB |\n|---|---|---|---|---|---|")
    for form in options.formats:
        with tempfile.TemporaryDirectory(dir=options.folder) as scratch:
            path, out = Path(scratch, f"table.{form}"), Path(scratch, "out")
            write(path, options.megabytes)
            seconds, peak = imported(path, out)
            with (out / "dev.jsonl").open("rb") as file:
                count = sum(1 for _ in file)
            size = path.stat().st_size / 1e6
        print(
            f"| {form} | {size:.0f} | {count} | {seconds:.0f} | {count / seconds:.0f} | {peak:.0f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()

"""Peak resident memory of ``acls evaluate`` and ``acls doctor`` on files much larger than it may be.

    python benchmarks/memory.py [--gb 5] [--classes 1000] [--formats parquet npz] [--folder DIR]

Makes a parquet file in row groups of about 1 GB and an .npz of the same rows, in a temporary folder that is removed in
the end; runs each command in a process of its own and prints what the system says was its peak, beside the time.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path

import numpy as np

LIMIT_MB = 1000
CHUNK = 1 << 15

_MEASURED = """
import json, resource, sys
from acls.cli import main
code = main(json.loads(sys.argv[1]))
print(json.dumps({"code": code, "mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}), file=sys.stderr)
"""


def rows(n: int, k: int, start: int) -> tuple[np.ndarray, np.ndarray]:
    """Some rows of an overconfident model: logits twice as large as those that the labels are drawn from."""
    generator = np.random.default_rng(start)
    logits = generator.standard_normal((n, k), dtype=np.float32)
    labels = (logits * 2 + generator.gumbel(size=(n, k)).astype(np.float32)).argmax(1)
    return 4 * logits, labels


def make(folder: Path, n: int, k: int) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    group = max(CHUNK, (1 << 28) // k // CHUNK * CHUNK)
    writer, waiting = None, []
    with zipfile.ZipFile(folder / "p.npz", "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
        labels = []
        with archive.open("logits.npy", "w", force_zip64=True) as member:
            np.lib.format.write_array_header_2_0(member, {"descr": "<f4", "fortran_order": False, "shape": (n, k)})
            for start in range(0, n, CHUNK):
                logits, target = rows(min(CHUNK, n - start), k, start)
                member.write(logits.data)
                labels.append(target)
                lists = pa.FixedSizeListArray.from_arrays(pa.array(logits.reshape(-1)), k)
                waiting.append(pa.table({"logits": lists, "labels": target}))
                if sum(map(len, waiting)) >= group or start + CHUNK >= n:
                    table = pa.concat_tables(waiting)
                    writer = writer or pq.ParquetWriter(folder / "p.parquet", table.schema, compression="none")
                    writer.write_table(table, row_group_size=len(table))
                    waiting = []
        writer.close()
        with archive.open("labels.npy", "w") as member:
            np.lib.format.write_array(member, np.concatenate(labels))


def measured(arguments: list[str]) -> dict[str, float]:
    start = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", _MEASURED, json.dumps(arguments)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(done.stderr)
    return json.loads(done.stderr.splitlines()[-1]) | {"s": time.perf_counter() - start, "out": done.stdout}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gb", type=float, default=5.0)
    parser.add_argument("--classes", type=int, default=1000)
    parser.add_argument("--formats", nargs="+", default=["parquet", "npz"], choices=["parquet", "npz"])
    parser.add_argument("--folder", type=Path, help="where to make the temporary folder")
    parser.add_argument("--make", nargs=2, type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.make:
        make(args.folder, *args.make)
        return 0
    n = int(args.gb * 1e9 / 4 / args.classes)
    worst = 0.0
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        # In a process of its own: what a process held before it started another counts for that one's peak.
        making = [sys.executable, __file__, "--folder", folder, "--make", str(n), str(args.classes)]
        subprocess.run(making, check=True)
        for name in (f"p.{suffix}" for suffix in args.formats):
            path = str(Path(folder, name))
            size = Path(path).stat().st_size / 1e9
            for command in (["evaluate", path, "--json"], ["evaluate", path, path, "--json"], ["doctor", path]):
                result = measured(command)
                worst = max(worst, result["mb"])
                shown = " ".join(command[:1] + [name] * (len(command) - command.count("--json") - 1))
                print(
                    f"{shown:32} {size:.2f} GB on disk  peak {result['mb']:6.0f} MB  {result['s']:6.1f} s", flush=True
                )
    print(f"worst peak {worst:.0f} MB, allowed {LIMIT_MB} MB")
    return int(worst > LIMIT_MB)


if __name__ == "__main__":
    sys.exit(main())

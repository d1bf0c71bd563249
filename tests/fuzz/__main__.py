"""Draw random rules and run them for some time: python -m fuzz --seconds 600 (make fuzz)."""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

TESTS = Path(__file__).parents[1]


def main() -> int:
    """Search for failing rules, print the findings, and return 1 if there are any."""
    parser = argparse.ArgumentParser(prog="fuzz", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60, help="how long to draw rules")
    parser.add_argument(
        "--rules", type=int, default=10**9, dest="max_rules", help="how many to draw at most"
    )
    parser.add_argument("--seed", default=str(int(time.time())), help="a seed fixes the rules")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--out", type=Path, help="where findings are written (tests/fuzz/found)")
    parser.add_argument("--lowerings", default="", help="names, with commas between them")
    features = ("matrices", "groups", "programs", "not elementwise")
    parser.add_argument(
        "--feature", default="", choices=features, help="run only rules that have it"
    )
    parser.add_argument(
        "--no-shrink", action="store_true", help="write failing rules without shrinking"
    )
    parser.add_argument(
        "--known", type=Path, help="a folder of findings that are not written again"
    )
    parser.add_argument(
        "--matrix", nargs="*", help="compose modifiers with rules: rules pairs chains stages"
    )
    parser.add_argument(
        "--from", type=int, default=0, dest="first", help="the number of the first combination"
    )
    parser.add_argument(
        "--replay", type=Path, nargs="+", help="files of findings, or folders, to run again"
    )
    return _run(parser.parse_args())


def _run(options: argparse.Namespace) -> int:
    import gc
    import warnings

    import interpreter  # noqa: F401  (speeds up Triton's interpreter)

    from fuzz.modifier_matrix import run_matrix
    from fuzz.replay import replay
    from fuzz.run import Run

    warnings.simplefilter("ignore")
    gc.collect()
    gc.freeze()  # the garbage collector skips all imported objects
    if options.replay:
        files_of_paths = (path.glob("*.py") if path.is_dir() else [path] for path in options.replay)
        return replay(sorted(path for files in files_of_paths for path in files))
    if options.matrix is not None:
        return run_matrix(options)
    return Run(options).run()


if __name__ == "__main__":
    # Triton reads TRITON_INTERPRET when it is imported.
    if os.environ.get("TRITON_INTERPRET") != "1":
        os.environ["TRITON_INTERPRET"] = "1"
        paths = [str(TESTS), str(TESTS.parent), os.environ.get("PYTHONPATH", "")]
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
        cache = TESTS.parent / "build" / "fuzz-cache"
        os.environ.setdefault("OPTGEN_CACHE_DIR", str(cache))
        os.execv(sys.executable, [sys.executable, "-m", "fuzz", *sys.argv[1:]])
    sys.exit(main())

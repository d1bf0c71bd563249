"""Load and save the losses of runs, as JSON."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from pathlib import Path

from examples.track3.training import Run, Setup


@dataclass
class SavedRuns:
    """The runs of one setup.

    Attributes:
        path: the JSON file.
        setup: the setup of all runs.
        tuning: the runs of the search for the baselines' learning rates, all with one seed.
        runs: all other runs.
    """

    path: Path
    setup: Setup
    tuning: list[Run] = field(default_factory=list)
    runs: list[Run] = field(default_factory=list)

    @classmethod
    def load(cls, path: Path, setup: Setup) -> SavedRuns:
        """Return the runs of a file, or no runs if there is no file.

        Raises:
            SystemExit: the file has runs of another setup.
        """
        if not path.exists():
            return cls(path, setup)
        known = json.loads(path.read_text(encoding="utf-8"))
        if known["setup"] != dataclasses.asdict(setup):
            raise SystemExit(
                f"{path} has runs of {known['setup']}, but the new runs would be of "
                f"{dataclasses.asdict(setup)}: name another file by --out"
            )
        tuning, runs = ([Run(**run) for run in known[part]] for part in ("tuning", "runs"))
        return cls(path, setup, tuning, runs)

    def save(self) -> None:
        """Write the file, with a line for each run."""
        parts = {"setup": json.dumps(dataclasses.asdict(self.setup))}
        for part, runs in (("tuning", self.tuning), ("runs", self.runs)):
            lines = ",\n".join(f"    {json.dumps(dataclasses.asdict(run))}" for run in runs)
            parts[part] = f"[\n{lines}\n  ]" if runs else "[]"
        body = ",\n".join(f'  "{part}": {text}' for part, text in parts.items())
        self.path.write_text(f"{{\n{body}\n}}\n", encoding="utf-8")

    def runs_of(self, name: str) -> list[Run]:
        """Return the runs of a result or of a baseline."""
        return [run for run in self.runs if run.name == name]

    def best_tuning_run(self, name: str) -> Run:
        """Return the tuning run of a baseline that has the lowest last loss."""
        tuning = [run for run in self.tuning if run.name == name]
        return min(tuning, key=lambda run: run.last_loss(self.setup))

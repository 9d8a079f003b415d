"""Data of the published models, from where they are: ``python -m benchmarks scoreboard.published_data GYM GERMAN``.

``GYM`` is the folder of an unpacked wheel of inference_gym 0.0.5 (TensorFlow Probability, Apache License 2.0), whose
data sets are files of arrays; ``GERMAN`` the file ``german.data-numeric`` of the UCI Machine Learning Repository
(H. Hofmann, Statlog, CC BY 4.0).  Both go to ``scoreboard/data``.
"""

from __future__ import annotations

import argparse
import gzip
import json
import runpy
from pathlib import Path
from typing import Any

import numpy as np
from scoreboard.posteriordb import DATA

GYM = "inference_gym 0.0.5 (TensorFlow Probability), Apache License 2.0"
GERMAN = "UCI Machine Learning Repository, Statlog (German Credit Data), numeric, H. Hofmann, CC BY 4.0"


def keep(name: str, source: str, **content: Any) -> None:
    text = json.dumps({"source": source, **content}, separators=(",", ":"))
    (DATA / f"{name}.json.gz").write_bytes(gzip.compress(text.encode(), 9, mtime=0))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("gym", type=Path, help="folder that holds inference_gym")
    parser.add_argument("german", type=Path, help="german.data-numeric")
    given = parser.parse_args()

    def arrays(name: str) -> dict[str, Any]:
        return runpy.run_path(str(given.gym / "inference_gym" / "internal" / "datasets" / f"{name}.py"))

    observed = arrays("brownian_motion_missing_middle_observations")["OBSERVED_LOC"]
    keep("brownian_motion", GYM, observed=[None if np.isnan(v) else float(f"{v:.9g}") for v in observed])
    answers = arrays("synthetic_item_response_theory")
    student, question = answers["STUDENT_IDS"], answers["QUESTION_IDS"]
    table = np.full((student.max() + 1, question.max() + 1), ".")
    table[student, question] = np.where(answers["CORRECT"] == 1, "1", "0")
    keep("item_response", GYM, answers=["".join(row) for row in table])
    prices = arrays("sp500_closing_prices")["CLOSING_PRICES"]
    keep("sp500", GYM, closing_prices=[float(f"{v:.8g}") for v in prices])
    rows = [line.split() for line in given.german.read_text().splitlines()]
    numbers = np.array([row for row in rows if row and all(cell.isdigit() for cell in row) and len(row) == 25], int)
    keep("german_credit", GERMAN, features=numbers[:, :24].tolist(), bad=(numbers[:, 24] == 2).astype(int).tolist())
    print(f"{len(student)} answers, {len(prices)} prices, {len(numbers)} credits, {(numbers[:, 24] == 2).sum()} bad")


if __name__ == "__main__":
    main()

"""Study: planted faults and clean runs (diagnosis.py). Writes diagnosis.md into the folder LOCKSTEP_STUDY_DIR.

LOCKSTEP_STUDY_SEEDS=FIRST:COUNT runs other seeds than those of the figure, and writes no page.
"""

import os
import pathlib

import diagnosis


def test_the_first_finding_is_the_planted_fault(binary_dir):
    planted = diagnosis.run(diagnosis.seeds(), False, binary_dir / "study")
    clean = diagnosis.run(diagnosis.seeds(), True, binary_dir / "study")
    text = diagnosis.page(planted, clean)
    print("\n" + text)
    folder = os.environ.get("LOCKSTEP_STUDY_DIR")
    if folder and "LOCKSTEP_STUDY_SEEDS" not in os.environ:
        pathlib.Path(folder, "diagnosis.md").write_text(text)
    assert not [o for o in planted + clean if "error" in o]
    assert sum(o["right"] for o in planted) >= diagnosis.RIGHT_AT_LEAST * len(planted)
    assert sum(len(o["found"]) for o in clean) <= diagnosis.CLEAN_AT_MOST * len(clean)

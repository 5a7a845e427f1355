"""Study: the fixes of planted faults (fixes.py). Writes fixes.md into the folder LOCKSTEP_STUDY_DIR."""

import os
import pathlib

import fixes


def test_the_fix_removes_the_fault(binary_dir):
    by_hand = fixes.run(fixes.cases_of("hand"), binary_dir / "study")
    generated = fixes.run(fixes.cases_of(f"{fixes.FIRST_SEED}:{fixes.COUNT}"), binary_dir / "study")
    text = fixes.page(by_hand, generated)
    print("\n" + text)
    folder = os.environ.get("LOCKSTEP_STUDY_DIR")
    if folder:
        pathlib.Path(folder, "fixes.md").write_text(text)
    outcomes = by_hand + generated
    assert not [o for o in outcomes if "error" in o]
    assert all(o["same"] for o in outcomes if o["grade"] != "no"), "a replay of the written policy does the same"
    tried = [o for o in outcomes if not fixes.is_untested(o)]
    assert all(o["gone"] for o in tried)
    assert all(fixes.is_fixed(o) or fixes.in_noise(o) for o in tried)

"""Study: reports from public trackers (world_reports.py). Writes reports.md into the folder LOCKSTEP_STUDY_DIR."""

import os
import pathlib
import statistics

import world_reports as study


def test_what_is_said_about_reports_from_the_world():
    outcomes = study.run_all()
    text = study.page(outcomes)
    print("\n" + text)
    folder = os.environ.get("LOCKSTEP_STUDY_DIR")
    if folder:
        pathlib.Path(folder, "reports.md").write_text(text)
    said, healthy = zip(*outcomes.values(), strict=True)
    assert not [outcome.error for outcome in (*said, *healthy) if outcome.error]
    assert sum(outcome.right for outcome in said) >= study.RIGHT_AT_LEAST * len(said)
    assert sum(map(study.removes, said)) >= study.REMEDY_AT_LEAST * len(said)
    false = [report.name for report in study.REPORTS if study.is_false(report, outcomes[report.name][1])]
    assert len(false) <= study.FALSE_AT_MOST * len(healthy), false
    assert statistics.median(outcome.seconds for outcome in (*said, *healthy)) <= study.SECONDS_AT_MOST

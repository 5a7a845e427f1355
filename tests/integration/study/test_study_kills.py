"""Study: 1800 kills of fresh runs, resumes, runs of captures, recommend, baseline record and check; a third with a
second program on the same file; and 200 races of every pair of writers. Writes docs/study/kills.md when LOCKSTEP_STUDY_DIR is set (`./dev study kills`)."""

import os
import pathlib

import kills
import tiny_capture as tiny

KILLS = int(os.environ.get("LOCKSTEP_STUDY_KILLS", "1800"))
RACES = int(os.environ.get("LOCKSTEP_STUDY_RACES", "200"))


def test_study_kills(binary_dir, tmp_path):
    capture = tiny.write(tmp_path / "net.h5", tiny.make(steps=12))
    campaign = kills.Campaign(binary_dir, tmp_path, capture, seed=1)
    kills.run_campaign(campaign, KILLS, RACES)
    table = campaign.table()
    print("\n" + table)
    counts = campaign.counts.values()
    killed = sum(c.kills for c in counts)
    assert killed >= 0.9 * KILLS  # the others had ended
    assert sum(c.contested for c in counts) >= 0.2 * KILLS and sum(c.refused for c in counts) >= 0.1 * KILLS
    assert all(r.ended == RACES for r in campaign.races.values())
    folder = os.environ.get("LOCKSTEP_STUDY_DIR")
    if folder:
        (pathlib.Path(folder) / "kills.md").write_text(page(killed, table))


def page(killed, table):
    return (
        f"# Kills at random moments\n\n`./dev study kills`: {killed} programs killed (SIGKILL), in about a third of "
        "the cases while a second program wanted the same file. No complete step was lost, one of two programs "
        "won, and every result has the bits of one that was never stopped; the next `check` removed the runs of "
        "one that was killed. In races, two programs start together and neither is killed: exactly one does the "
        f"work. A failure of any of these ends the study.\n\n{table}"
    )

"""Study: 5000 damaged readings over every kind of file and every reader. Writes docs/study/damage.md when
LOCKSTEP_STUDY_DIR is set (`./dev study damage`)."""

import os
import pathlib

import damage
import tiny_capture as tiny

READINGS = int(os.environ.get("LOCKSTEP_STUDY_DAMAGE", "5000"))


def test_study_damage(binary_dir, tmp_path):
    capture = tiny.write(tmp_path / "net.h5", tiny.make(steps=4))
    campaign = damage.Campaign(binary_dir, tmp_path / "files", capture, seed=1)
    campaign.run(READINGS)
    table = campaign.table()
    print("\n" + table)
    assert not campaign.harmful, "\n".join(campaign.harmful)
    assert all(counts.total() for counts in campaign.counts.values()), "every reader must have read"
    folder = os.environ.get("LOCKSTEP_STUDY_DIR")
    if folder:
        (pathlib.Path(folder) / "damage.md").write_text(page(READINGS, table))


def page(readings, table):
    return (
        f"# Files damaged by chance\n\n`./dev study damage`: {readings} readings of a file of which a bit was flipped, "
        "the end cut off, a page of 4096 bytes set to zero (64 in small files), or two pages swapped. Exit code and "
        "output are compared with those of the whole file. A crash, or a different answer with no error, ends the "
        "study.\n\n"
        "- *same answer*: the reader does not read the bytes that changed, or makes anew what they held.\n"
        "- *part named*: the message names the dataset, the attribute or the step.\n"
        "- *refused*: the message names the file alone: HDF5 cannot open it, or its SHA-256 does not fit.\n"
        "- *noted*: baselines are read after a merge by git, too; the answer then says that the file is not as it "
        f"was written.\n\n{table}"
    )

"""Networks of the zoo with every PyTorch of two years; the table is docs/study/torch-versions.md. Hours; 0.5 to 1 GB are
downloaded for each version, one after the other.

Results are kept in build/torch-versions, so that a study that was interrupted continues where it stopped; remove the
folder to repeat everything. LOCKSTEP_STUDY_VERSIONS=2.6.0,2.14.1 runs these versions alone.
"""

import os
import pathlib

import torch_versions
from conftest import SOURCE

LEAST_NETWORKS, LEAST_SHARE = 60, 0.95
ONLY = os.environ.get("LOCKSTEP_STUDY_VERSIONS", "")


def test_study_torch_versions(binary_dir):
    folder = SOURCE / "build" / "torch-versions"
    torch_versions.study(binary_dir / "lockstep", folder, tuple(ONLY.split(",")) if ONLY else torch_versions.VERSIONS)
    found = torch_versions.load(folder)
    text = torch_versions.page(found)
    print("\n" + text)
    if os.environ.get("LOCKSTEP_STUDY_DIR"):
        pathlib.Path(os.environ["LOCKSTEP_STUDY_DIR"], "torch-versions.md").write_text(text)
    for version, result in found.items():
        results = [r for r in result["networks"].values() if r["status"] not in ("absent", "broken")]
        assert len(results) >= LEAST_NETWORKS, version
        assert sum(map(torch_versions.of_version.gets_in, results)) >= LEAST_SHARE * len(results), version
        assert not result["missing"], version

"""Run files that a test changes: as an earlier version wrote them, without checksums, or with fewer steps."""

import numpy as np
from lockstep_capture.run_checksum import FIRST_VERSION, steps_checksum


def unseal(file):
    """file: of h5py, open for changes. The runs of further seeds keep their checksums."""
    del file.attrs["description_checksum"]
    file.attrs["format_version"] = np.int64(FIRST_VERSION - 1)


def shorten(file, steps):
    """As if the run had been killed after so many steps."""
    file.attrs["steps_complete"] = np.int64(steps)
    file.attrs["steps_checksum"] = np.bytes_(steps_checksum(steps, is_closed=False))

"""Study: every call that changes the files of a short run fails once. Writes a table when LOCKSTEP_STUDY_DIR
is set (`./dev study faults`).
"""

import os
import pathlib

import syscall_faults


def test_study_faults(lockstep, binary_dir, tmp_path):
    assert syscall_faults.can_inject(tmp_path), "strace required"
    calls, outcomes = syscall_faults.sweep(lockstep, str(binary_dir / "lockstep"), tmp_path, most=0)
    rows = [
        f"| `{call}` | {error} | {calls[call]} | {outcomes[call, 'said']} | {outcomes[call, 'whole']} | "
        f"{outcomes[call, 'not struck']} |"
        for call, (error, _) in syscall_faults.FAULTS.items()
    ]
    table = "\n".join(
        ["| call | error | calls | reported, exit code 2 | run complete anyway | not struck |", "|---" * 6 + "|", *rows]
    )
    print("\n" + table)
    assert sum(outcomes[call, "not struck"] for call in syscall_faults.FAULTS) <= 10
    folder = os.environ.get("LOCKSTEP_STUDY_DIR")
    if folder:
        command = " ".join(["lockstep", *syscall_faults.ARGS])
        text = (
            "# Every call that opens, writes, renames or removes a file fails once\n\n`./dev study faults`: strace makes "
            f"one call on the files of a run fail, each in its turn, in a run of its own (`{command}`). A run that ends with an error names it; what is there "
            "passes `verify` and continues to the bits of a run without faults, and no `--resume` is advised where "
            "nothing is. Anything else ends the study. Not struck: that run made "
            f"fewer calls, because snapshots of the progress follow the clock.\n\n{table}\n"
        )
        (pathlib.Path(folder) / "faults.md").write_text(text)

"""Study: every system call on the files of a short run fails once. Writes a table when LOCKSTEP_STUDY_DIR
is set (`./dev study faults`).
"""

import os
import pathlib

import syscall_faults


def test_study_faults(lockstep, binary_dir, tmp_path):
    assert syscall_faults.works(tmp_path), "strace required"
    calls, outcomes = syscall_faults.sweep(lockstep, str(binary_dir / "lockstep"), tmp_path, most=0)
    rows = [f"| `{call}` | {error} | {calls[call]} | {outcomes[call, 'said']} | {outcomes[call, 'whole']} |"
            for call, (error, _) in syscall_faults.FAULTS.items()]
    table = "\n".join(["| call | error | times | said, exit code 2 | run whole all the same |", "|---" * 5 + "|", *rows])
    print("\n" + table)
    assert sum(outcomes.values()) == sum(calls[call] for call in syscall_faults.FAULTS)
    folder = os.environ.get("LOCKSTEP_STUDY_DIR")
    if folder:
        command = " ".join(["lockstep", *syscall_faults.ARGS])
        text = (f"# Every system call fails once\n\n`./dev study faults`: strace makes one call on the files of a run fail, "
                f"each in its turn, in a run of its own (`{command}`). A run that ends with an error names it; what is there "
                "passes `verify` and continues to the bits of a run without faults, and no `--resume` is advised where "
                f"nothing is. Anything else ends the study.\n\n{table}\n")
        (pathlib.Path(folder) / "faults.md").write_text(text)

"""A system call fails, in turn: the data are whole or the error is said, never neither. A sample of the calls;
`./dev study faults` takes all.
"""

import pytest
import syscall_faults


def test_a_sample_of_the_calls_fails_once(lockstep, binary_dir, tmp_path):
    if not syscall_faults.can_inject(tmp_path):
        pytest.skip("no strace, or tracing is not allowed")
    _, outcomes = syscall_faults.sweep(lockstep, str(binary_dir / "lockstep"), tmp_path, most=6)
    print(dict(outcomes))
    for call in syscall_faults.FAULTS:
        assert outcomes[call, "whole"] + outcomes[call, "said"] > 0, call

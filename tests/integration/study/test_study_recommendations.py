"""Study: recommendations and their proofs (recommendations.py). Writes recommendations.md into LOCKSTEP_STUDY_DIR."""

import os
import pathlib

import recommendations as study


def test_policies_pass_their_own_proofs(binary_dir, tmp_path):
    program = binary_dir / "lockstep"
    wanted = ["--formats", study.FORMATS, "--prove"]
    rows = [study.recommend(program, name, name, tmp_path, *options, *wanted) for name, options in study.MODELS.items()]
    for name in study.CAPTURES:
        path = study.capture(name, tmp_path)
        rows.append(study.recommend(program, path.name, f"capture of {name}.py", tmp_path, *wanted))
    searched = [study.planted(program, name, formats, tmp_path) for name, formats in study.PLANTED.items()]
    scales = [study.settle(program, name, options, tmp_path) for name, options in study.MODELS.items()]
    text = study.page(rows + searched) + study.scale_page(scales)
    print("\n" + text)
    folder = os.environ.get("LOCKSTEP_STUDY_DIR")
    if folder:
        pathlib.Path(folder, "recommendations.md").write_text(text)
    results = {row.name: study.result(row) for row in rows}
    assert all(results[name] == "pass" for name in study.MUST_PASS), results
    rest = [result for name, result in results.items() if name not in study.MUST_PASS]
    assert "fail" not in rest and rest.count("pass") >= study.PASSES_AT_LEAST, results
    assert all(row.inside for row in scales if row.settles), scales
    assert sum(row.settles for row in scales) >= len(scales) // 2, scales

"""`lockstep demo`: a page and what to do next, in a folder whose other files it leaves alone."""


def test_a_page_and_what_is_next(lockstep, tmp_path):
    own = tmp_path / "run.h5"
    own.write_bytes(b"a run of mine")
    (tmp_path / "demo.html").write_text("an earlier demo's")
    said = lockstep("demo", "-o", tmp_path).stdout
    assert "pure-fp16 broke at step" in said and "$ lockstep replay lenet" in said
    assert "\nnext:\n" in said and str(tmp_path / "demo.html") in said
    assert (tmp_path / "demo.html").read_text().startswith("<!DOCTYPE html>")
    assert own.read_bytes() == b"a run of mine"
    assert {path.name for path in tmp_path.iterdir()} >= {"demo.h5", "demo.html", "run.h5"}

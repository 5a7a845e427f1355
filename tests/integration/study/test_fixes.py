"""A few networks of the study of fixes (fixes.py), and its page by hand."""

import fixes


def test_every_lane_in_which_a_fault_fires_is_a_case():
    cases = fixes.hand_cases()
    assert len(cases) == len(set(cases)) >= 30
    assert {"half", "torch-autocast-fp16", "pure-bf16"} <= {lane for _, lane in cases}


def test_some_networks(binary_dir):
    wanted = ("variance that vanishes", "a buffer too large to store", "updates too small for bf16")
    by_hand = fixes.run([case for case in fixes.cases_of("hand") if case["name"] in wanted])
    generated = fixes.run(fixes.cases_of("1000:6"))
    print("\n" + fixes.page(by_hand, generated))
    assert len(by_hand) == 3 and not [o for o in by_hand + generated if "error" in o]
    assert all(o["gone"] and o["same"] for o in by_hand + generated)
    assert all(fixes.is_fixed(o) or fixes.in_noise(o) for o in by_hand + generated)


def test_the_page_counts_what_was_not_fixed():
    base = {
        "name": "net",
        "lane": "half",
        "kind": "overflow",
        "finding": "fc overflows",
        "fix": "fc in fp32",
        "changes_run": False,
        "loss_before": None,
        "loss_after": 1.0,
        "loss_fp32": 1.0,
        "gap": 0.0,
        "tolerance": 0.1,
        "verdict": "fine",
        "answer": "fixed",
        "grade": "tolerance",
        "tried": 4,
        "untested": [],
        "gone": True,
        "within": True,
    }
    noise = {**base, "grade": "noise", "within": False, "gap": 0.2}
    none = {**base, "answer": "nothing_helped", "grade": "no", "fix": "", "gone": False, "within": False}
    text = fixes.page(
        [base, noise], [none, {**none, "tried": 0, "untested": ["rescale it"]}, {"seed": 7, "error": "E: no"}]
    )
    assert "planted by hand: fault gone and loss within the tolerance in **1 of 2**" in text
    assert "noise only: 1; untested: 0; not fixed: 0" in text and "noise only: 0; untested: 1; not fixed: 1" in text
    assert "- 7: E: no" in text and "untested: rescale it" in text

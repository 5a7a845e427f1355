"""The claims the recipe study judges (recipes.py): every preset has one, what outcomes make of it, and the reading."""

import json

import pytest
import recipes

# Two seeds of a transformer small enough for every day; AdamW's eps is 0 in FP16, so half breaks at once.
TINY = [
    "--size",
    "layers=1,width=16,heads=2,context=8,dropout=0",
    "--steps",
    30,
    "--batch",
    8,
    "--optimizer",
    "adamw",
    "--lr",
    1e-2,
    "--seeds",
    2,
    "--threads",
    1,
    "--quiet",
]


def test_every_preset_says_what_it_claims(lockstep):
    presets = [row["preset"] for row in json.loads(lockstep("list", "presets", "--json").stdout)]
    presets = [
        name for name in presets if not name.startswith("as-captured")
    ]  # for captures; the study has built-in models
    said = [recipe.preset for recipe in recipes.RECIPES]
    assert sorted(said + [recipes.REFERENCE]) == sorted(presets)
    assert all(recipe.source for recipe in recipes.RECIPES)


@pytest.mark.parametrize(
    "matches, outcomes, standing",
    [
        (True, "fine fine", recipes.CONFIRMED),
        (True, "fine unclear", recipes.OPEN),
        (True, "fine worse", recipes.NOT_CONFIRMED),
        (True, "stalled fine", recipes.NOT_CONFIRMED),
        (True, "unclear broke", recipes.NOT_CONFIRMED),
        (True, "fine too-short", recipes.NOT_CONFIRMED),
        (False, "fine worse", recipes.CONFIRMED),
        (False, "stalled fine", recipes.CONFIRMED),
        (False, "unclear broke", recipes.CONFIRMED),
        (False, "fine unclear", recipes.NOT_CONFIRMED),
        (False, "too-short too-short", recipes.NOT_CONFIRMED),
        (None, "broke broke", ""),
    ],
)
def test_what_outcomes_make_of_a_claim(matches, outcomes, standing):
    found = {str(i): word.replace("-", " ") for i, word in enumerate(outcomes.split())}
    assert recipes.standing(recipes.Recipe("x", matches, "source"), found) == standing


def test_the_outcomes_are_the_programs_own(lockstep, tmp_path):
    found = recipes.measure(lockstep, "gpt", TINY, ["fp32", "apex-o0", "half"], tmp_path / "run.h5")
    assert {name: lane["outcome"] for name, lane in found.items()} == {
        "fp32": "reference",
        "apex-o0": "fine",
        "half": "broke",
        "twin": "fine",
    }
    assert found["apex-o0"]["gap"] == 0 and found["half"]["gap"] is None
    assert found["half"]["sentence"].startswith("half broke in 2 of 2 seeds")
    assert found["half"]["findings"][0]["kind"] == "invalid operation"
    assert all(lane["seeds"] == 2 for lane in found.values())
    assert not list(tmp_path.iterdir())

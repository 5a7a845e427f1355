"""The claims the recipe study judges (recipes.py): every preset has one, and the criterion by hand."""

import json
import math

import recipes


def test_every_preset_says_what_it_claims(lockstep):
    presets = [row["preset"] for row in json.loads(lockstep("list", "presets", "--json").stdout)]
    said = [recipe.preset for recipe in recipes.RECIPES]
    assert sorted(said + [recipes.REFERENCE]) == sorted(presets)
    assert all(recipe.source for recipe in recipes.RECIPES)


def test_the_noise_by_hand():
    # s^2 = 2 in both, n = 2: noise = sqrt(4 / 2), five times that is 7.07.
    fp32, twin = [1, 3], [2, 4]
    assert recipes.noise(fp32, twin) == math.sqrt(2)
    assert recipes.within([8, 10], fp32, twin) and recipes.within([-6, -4], fp32, twin)
    assert not recipes.within([9, 11], fp32, twin) and not recipes.within([-7, -5], fp32, twin)
    assert not recipes.within([math.nan, 3], fp32, twin)


def record(**figures):
    return {"loss": [1, 3], "held-out": [1, 3], "died_at": [-1, -1]} | figures


def test_a_lane_matches_in_both_figures_and_to_the_end():
    fp32 = record()
    assert recipes.matches(record(), fp32, fp32)
    assert not recipes.matches(record(loss=[9, 11]), fp32, fp32)
    assert not recipes.matches(record(**{"held-out": [9, 11]}), fp32, fp32)
    assert not recipes.matches(record(died_at=[-1, 7]), fp32, fp32)


def test_a_claim_holds_everywhere_its_denial_somewhere():
    claims, denies, neither = (recipes.Recipe("x", word, "") for word in (True, False, None))
    assert recipes.as_claimed(claims, {"a": True, "b": True}) is True
    assert recipes.as_claimed(claims, {"a": True, "b": False}) is False
    assert recipes.as_claimed(denies, {"a": True, "b": False}) is True
    assert recipes.as_claimed(denies, {"a": True, "b": True}) is False
    assert recipes.as_claimed(neither, {"a": False}) is None

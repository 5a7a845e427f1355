"""A sample of the kills and races of `./dev study kills`: nothing that was complete is lost, one of two programs wins."""

import kills
import tiny_capture as tiny


def test_kills(binary_dir, tmp_path):
    capture = tiny.write(tmp_path / "net.h5", tiny.make(steps=12))
    campaign = kills.Campaign(binary_dir, tmp_path, capture, seed=20261126)
    kills.run_campaign(campaign, 24, races=2)
    print("\n" + campaign.table())
    counts = campaign.counts.values()
    assert sum(c.inside for c in counts) >= 10, "the kills must hit running programs"
    assert sum(c.refused for c in counts) + sum(r.refused for r in campaign.races.values()) >= 1, (
        "a second program must have met the first"
    )

"""Which names of the report's kinds say what was planted, and why where there are several."""

# Planted kind: names of a finding that is right.
ACCEPTED = {}
# Findings of the lane as a whole, without a site: planted kinds for which that is right although a layer was planted.
LANE_KINDS = {}

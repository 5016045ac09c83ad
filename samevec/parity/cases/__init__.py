"""The texts and pairs that the gate runs, and the groupings they run in."""

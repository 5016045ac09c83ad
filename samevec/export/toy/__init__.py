"""Models made from integers: the toy pair, and full-shape models with seeded weights."""

"""How rows become microbatches: the plan, what a run costs, which run side by side."""

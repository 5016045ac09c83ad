"""How rows become microbatches: the plan, and what a run costs."""

"""What a study will cost, and what to fetch for it, before anything is run."""

"""A variant held against others: paired numbers, a verdict for each, frontiers, one HTML page."""

"""Tidy results, statistics, tables, figures and the report of a study; the paper's numbers."""

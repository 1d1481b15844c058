"""Evaluation: the lm-eval adapter, records, task files, the code sandbox, throughput."""

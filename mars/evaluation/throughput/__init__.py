"""The wall-clock study: what tokens per forward are worth in seconds, beside every opponent."""

from mars.evaluation.throughput.grid import measure

__all__ = ["measure"]

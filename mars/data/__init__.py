"""Conversations → token ids and response mask, and where conversations come from."""

from mars.data.encoding import Encoded, RowError, encode, encode_all, end_of_turn_id
from mars.data.sources import DataError, check_rows, load_examples

__all__ = [
    "DataError",
    "Encoded",
    "RowError",
    "check_rows",
    "encode",
    "encode_all",
    "end_of_turn_id",
    "load_examples",
]

"""Conversations → token ids and response mask, and where conversations come from."""

from mars.data.encoding import Encoded, RowError, TemplateError, encode, encode_all, end_of_turn_id
from mars.data.examples import Examples, Report
from mars.data.prepare import check_rows, data_identity, load_examples
from mars.data.sources import DataError

__all__ = [
    "DataError",
    "Encoded",
    "Examples",
    "Report",
    "RowError",
    "TemplateError",
    "check_rows",
    "data_identity",
    "encode",
    "encode_all",
    "end_of_turn_id",
    "load_examples",
]

"""MARS reproduced: multi-token generation by mask fine-tuning."""

__version__ = "0.1.0"

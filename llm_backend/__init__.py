"""Encore: chat with a local model, keep a receipt for every answer, replay it token by token."""

__version__ = "0.1.0"

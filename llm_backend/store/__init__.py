"""Receipts and runs in a database: SQLite by default, anything with an async SQLAlchemy driver by URL."""

from llm_backend.run import Run
from llm_backend.store.chats import Chat
from llm_backend.store.comparisons import StoredComparison
from llm_backend.store.findings import StoredFinding
from llm_backend.store.retention import Deleted, Selection
from llm_backend.store.runs import QUESTION_LENGTH
from llm_backend.store.store import Store

__all__ = [
    "QUESTION_LENGTH",
    "Chat",
    "Deleted",
    "Run",
    "Selection",
    "Store",
    "StoredComparison",
    "StoredFinding",
]

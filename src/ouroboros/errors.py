"""Documented path of the errors that a caller may catch: `from ouroboros.errors import StageError`."""

from ouroboros.pipeline.store.errors import (
    ConfigError,
    DataError,
    ModelError,
    OuroError,
    QueryError,
    StageError,
    SyncError,
)

__all__ = ["ConfigError", "DataError", "ModelError", "OuroError", "QueryError", "StageError", "SyncError"]

"""Declares every setting (type, meaning, bounds, default) and the components of algorithms."""

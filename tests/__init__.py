"""Tests; a package so that they can share tests/factories.py and tests/fake_run.py."""

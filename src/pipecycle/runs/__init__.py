"""Runs: what decides them, their folders, and many of them at once."""

"""Profiles, and the execution providers they need."""

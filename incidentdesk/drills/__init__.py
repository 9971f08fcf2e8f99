"""Drills: real failures on real processes through the whole desk, judged from cluster and database."""

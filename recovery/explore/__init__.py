"""Exhaustive walks over the tables of the core, with traces."""

"""Benches: measured figures, printed with the load they were taken under; never asserted as absolute times."""

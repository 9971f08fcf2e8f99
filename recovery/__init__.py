"""The pure core: decides what to do. Standard library only, no clock, no randomness, no logging."""

"""The worker agent: entry point of a training container. Python 3.8, standard library only."""

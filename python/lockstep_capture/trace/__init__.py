"""The user's step function as a program: the path that it took on real values."""

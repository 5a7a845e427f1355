"""The forward pass in two forms: PyTorch's calls (program.py) and Lockstep's graph (graph.py)."""

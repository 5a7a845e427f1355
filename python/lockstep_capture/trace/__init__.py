"""The user's step function as a program: torch.export first, TorchScript's tracer where that fails."""

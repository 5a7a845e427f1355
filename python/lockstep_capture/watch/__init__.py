"""What the user's loop does within one block of `cap.step`, and whether the capture explains all of it."""

"""A zoo of small networks with random weights: which of the networks that people train can be captured?"""

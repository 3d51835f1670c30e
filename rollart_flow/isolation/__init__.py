"""Isolated processes for user code that may hang or crash. This package imports neither Ray nor
torch.
"""

"""Models of engines, environments and scoring."""

"""Root file systems of boxes: addressed by content, cached in tiers, built from simple files."""

"""Task folders of the Harbor format, schema 1.4: read whole, and run as it says."""

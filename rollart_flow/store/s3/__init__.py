"""S3 as a store of runs: who may speak to it, blobs in it, and what it must promise."""
